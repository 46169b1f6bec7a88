"""What tests that send signals set in the processes that they start."""

from __future__ import annotations

import signal


def usual_signals() -> None:
    """Signals as in the foreground of a shell, to be called in a new process.

    What a shell starts with ``&``, or nohup, ignores some, and hands that on.
    """
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)

"""SIGTERM as an orderly end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def sigterm_exits() -> Iterator[None]:
    """Within it, SIGTERM raises ``SystemExit(143)`` in the main thread, so that pools close.

    For the main thread of a program of one's own; whatever handled SIGTERM is put back.
    """

    def leave(number: int, _: FrameType | None) -> None:
        # Once is enough: a second one must not interrupt the cleaning up.
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

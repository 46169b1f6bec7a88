"""A process that is no child of this one, signalled and awaited as one."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess


class Adopted:
    """By its pidfd (pidfd_open(2)), which stays that process's when it has ended."""

    def __init__(self) -> None:
        self._fd = -1

    @staticmethod
    def possible() -> bool:
        """Whether the kernel has what this takes."""
        try:
            os.close(os.pidfd_open(os.getpid()))
        except OSError:
            return False
        return True

    def begin(self, pid: int) -> None:
        """Its number, told by itself, so that it is no other's yet."""
        self._fd = os.pidfd_open(pid)

    def send_signal(self, number: int) -> None:
        """Nothing happens where it has ended, or was never there."""
        if self._fd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, number)

    def kill(self) -> None:
        """Ends it."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> None:
        """Until it has ended; :class:`subprocess.TimeoutExpired` if it has not by then."""
        if self._fd < 0:
            return
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if not poll.poll(None if timeout is None else timeout * 1000):
            raise subprocess.TimeoutExpired("the process that starts the ranks", timeout or 0.0)
        os.close(self._fd)
        self._fd = -1

"""Signals that end a run: answered at once, though what is under way takes a moment."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType, TracebackType
from typing import Any

from fsdpfuzz.loop import Emit, Event, Notice, RunFinished, Stopped

TOLD = b"fsdpfuzz: finishing; Ctrl-C again stops\n"
"""Printed when SIGINT arrives: in the middle of whatever was being printed."""
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Within the block a signal raises `Stopped`, and the first SIGINT is told about.

    An exception that is raised while memory is being collected gets lost, and Hypothesis has
    Python code run there; so `again` raises once more what did not come through. A signal that
    is ignored, as in what a shell starts with ``&``, stays so.
    """

    def __init__(self) -> None:
        self._pending: int | None = None
        self._previous: dict[int, Any] = {}
        self._hook = sys.unraisablehook

    def __enter__(self) -> Interrupts:
        for number in NUMBERS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._take)
        sys.unraisablehook = self._lost
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        sys.unraisablehook = self._hook

    def again(self) -> None:
        """Raises for a signal that came, if the run goes on in spite of it."""
        if self._pending is not None:
            raise Stopped(self._pending)

    def done(self) -> None:
        """The run is ending: nothing is raised again."""
        self._pending = None

    def heeded(self, emit: Emit) -> Emit:
        """The same, but it raises once more for a signal that did not end the run."""

        def told(event: Event) -> None:
            # Once a signal has come through, nothing comes but notices and the end.
            if isinstance(event, RunFinished):
                self.done()
            elif not isinstance(event, Notice):
                self.again()
            emit(event)

        return told

    def _lost(self, unraisable: Any) -> None:
        # It is raised again, so there is no need to say that it was ignored.
        if not isinstance(unraisable.exc_value, Stopped):
            self._hook(unraisable)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        first, self._pending = self._pending is None, number
        if first and number == signal.SIGINT:
            with contextlib.suppress(OSError):
                # Not by print: a handler may run in the middle of one, whose stream cannot be
                # entered twice.
                os.write(2, TOLD)
        raise Stopped(number)

"""A signal that ends the run waits for what must be done whole or not at all."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

NUMBERS: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Handler = Callable[[int, FrameType | None], object]


class _Hold:
    """Stands in for the handlers of signals: keeps what comes, or passes it on."""

    def __init__(self) -> None:
        self.holding = True
        self.handlers: dict[int, Handler] = {}
        self.came: list[int] = []

    def take(self, number: int, frame: FrameType | None) -> None:
        # A signal that comes while handlers are put back may end that half way.
        if self.holding:
            self.came.append(number)
        else:
            self.handlers[number](number, frame)


@contextmanager
def signals_held() -> Iterator[None]:
    """Signals whose handlers raise are handled at the end of the block, if any came in it.

    A case is on disk before it is booked: one that a signal left in between would be in no
    summary. Outside of the main thread no handler runs, so there is nothing to hold.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    hold = _Hold()
    for number in NUMBERS:
        handler = signal.getsignal(number)
        if callable(handler):
            hold.handlers[number] = handler
            signal.signal(number, hold.take)
    try:
        yield
    finally:
        hold.holding = False
        for number, handler in hold.handlers.items():
            signal.signal(number, handler)
        for number in hold.came:
            hold.handlers[number](number, None)

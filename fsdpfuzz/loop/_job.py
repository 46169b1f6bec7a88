"""A job's side of a campaign: its settings come from there, its events and questions go there."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import threading

from fsdpfuzz.loop._causes import Cause
from fsdpfuzz.loop._events import Event
from fsdpfuzz.loop._messages import (
    Answer,
    Failed,
    First,
    Lines,
    Message,
    More,
    News,
    Reduced,
    Turn,
    answers,
    line_of,
    settings,
    told,
)
from fsdpfuzz.loop._portions import Portion
from fsdpfuzz.loop._run import Stopped
from fsdpfuzz.loop._settings import RunSettings

_CHUNK = 1 << 16


class Job:
    """The connection of a job with its campaign, which is its `Peers`, too.

    A job whose campaign is gone gets SIGTERM.
    """

    def __init__(self, fd: int) -> None:
        # Neither ranks nor scripts may hold it open.
        os.set_inheritable(fd, False)
        self._socket = socket.socket(fileno=fd)
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._seen = 0
        self._lost = False
        self._ended = False
        # A thread, so that a campaign that goes away is noticed in the middle of a case, too.
        threading.Thread(target=self._listen, daemon=True).start()

    def settings(self) -> RunSettings:
        """What to run; asked first, and once."""
        return settings.decode(self._lines.get())

    def tell(self, event: Event) -> None:
        """Tells of an event."""
        self._send(told(event))

    def fail(self, reason: str) -> None:
        """Says why there will be no result."""
        self._send(Failed(reason))

    def end(self) -> None:
        """There is nothing more to tell, and the campaign may go."""
        self._ended = True

    def first(self, name: str) -> bool:
        """See `Peers.first`."""
        return self._ask(First(name)).yes

    def news(self) -> list[Cause]:
        """See `Peers.news`."""
        causes = self._ask(News(self._seen)).causes
        self._seen += len(causes)
        return list(causes)

    def turn(self, *, wait: bool) -> bool:
        """See `Peers.turn`."""
        return self._ask(Turn(self._seen, wait)).yes

    def reduced(self, cause: Cause | None) -> bool:
        """See `Peers.reduced`."""
        done = self._ask(Reduced(self._seen, cause)).yes
        if done and cause is not None:
            self._seen += 1
        return done

    def more(self) -> Portion | None:
        """See `Peers.more`."""
        return self._ask(More()).portion

    def _ask(self, question: Message) -> Answer:
        self._send(question)
        line = b"" if self._lost else self._lines.get()
        if not line:
            raise Stopped(signal.SIGTERM)
        return answers.decode(line)

    def _send(self, message: Message) -> None:
        if self._lost:
            return
        try:
            self._socket.sendall(line_of(message))
        except OSError:
            self._lost = True
            raise Stopped(signal.SIGTERM) from None

    def _listen(self) -> None:
        lines = Lines()
        with contextlib.suppress(OSError):
            while data := self._socket.recv(_CHUNK):
                for line in lines.cut(data):
                    self._lines.put(line)
        # For whoever waits for an answer; no line of JSON is empty.
        self._lines.put(b"")
        if not self._ended:
            # Python runs handlers in the main thread, which so gets the exception that ends a run.
            os.kill(os.getpid(), signal.SIGTERM)

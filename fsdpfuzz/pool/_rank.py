"""The controller's end of one rank: its channel, its output, how it ended."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time

from fsdpfuzz.wire import Frames, GarbageError, Order, Reply, frame, reply

MAX_OUTPUT = 64 << 10
"""Bytes kept of what a rank prints: the last ones."""
_READ = 256 << 10
_REST = 100
_MODULES = re.compile(r"^\n?Extension modules: .*\n?", re.MULTILINE)


class Rank:
    """Never blocks and never raises for anything that the rank does."""

    def __init__(self, rank: int, channel: socket.socket, output: int) -> None:
        self.rank = rank
        self.pid = 0
        self.code: int | None = None
        """Exit code once it has ended; negative for a signal."""
        self.lost = ""
        """Why nothing can come from it any more, although it may not have ended yet."""
        self.lost_at = 0.0
        self.garbage = False
        """Whether it sent what is no message."""
        self.killed = False
        self.inbox: list[Reply] = []
        self.channel = channel
        self.output = output
        self._outgoing = bytearray()
        self._frames = Frames()
        self._tail = bytearray()
        # A rank that stops in the middle of a message must not stop the controller.
        channel.setblocking(False)
        os.set_blocking(output, False)

    @property
    def wants_to_write(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._outgoing) and not self.lost

    def send(self, message: Order) -> None:
        """Sends what fits now; `write` sends the rest."""
        self._outgoing += frame(message)
        self.write()

    def write(self) -> None:
        """Sends what the channel takes."""
        try:
            while self._outgoing:
                # A socket takes what its buffer has room for.
                del self._outgoing[: self.channel.send(self._outgoing)]
        except BlockingIOError:
            pass
        except OSError as error:
            self._lose(f"its channel broke: {error}")

    def read_channel(self) -> bool:
        """Takes in what has come; False at the channel's end."""
        try:
            data = self.channel.recv(_READ)
        except BlockingIOError:
            return True
        except OSError as error:
            self._lose(f"its channel broke: {error}")
            return False
        if not data:
            self._lose("it closed its channel")
            return False
        try:
            self.inbox += [reply(body) for body in self._frames.feed(data)]
        except GarbageError as error:
            self.distrust(str(error))
            return False
        return True

    def read_output(self) -> bool:
        """Takes in what it printed and keeps the end; False at the output's end."""
        try:
            data = os.read(self.output, _READ)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._tail += data
        # The last bytes: what C++ says before it aborts comes at the end.
        del self._tail[:-MAX_OUTPUT]
        return bool(data)

    def read_rest(self) -> None:
        """After its end: takes in what is still in the pipes, which hold little."""
        # Bounded: a process that the rank started may hold the pipe, and go on writing.
        for _ in range(_REST):
            before = len(self.inbox), bytes(self._tail)
            if not self.lost:
                self.read_channel()
            self.read_output()
            if before == (len(self.inbox), bytes(self._tail)):
                return

    def forget(self) -> None:
        """Drops messages and output of the last case."""
        self.inbox.clear()
        self._tail.clear()

    def printed(self, limit: int) -> str:
        """The last ``limit`` characters of its output."""
        text = self._tail.decode(errors="replace")
        # What faulthandler adds to each crash: hundreds of names that say nothing.
        return _MODULES.sub("", text)[-limit:]

    def close(self) -> None:
        """Closes both ends of ours."""
        self.channel.close()
        if self.output >= 0:
            with contextlib.suppress(OSError):
                os.close(self.output)
            # Its number may be another file's by the next `close`.
            self.output = -1

    def distrust(self, reason: str) -> None:
        """It sent what it should not have, and is to be killed."""
        self.garbage = True
        self._lose(f"it sent {reason}")

    def _lose(self, reason: str) -> None:
        if not self.lost:
            self.lost, self.lost_at = reason, time.monotonic()

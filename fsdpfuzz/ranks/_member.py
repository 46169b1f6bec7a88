"""One rank as the controller sees it: what it has said, printed, and whether it lives."""

from __future__ import annotations

import os
import selectors
from collections import deque
from pathlib import Path

import msgspec

from fsdpfuzz.ranks._launch import Child
from fsdpfuzz.ranks._protocol import (
    FrameError,
    FrameReader,
    FromRank,
    RankConfig,
    RunCase,
    decode_answer,
    encode,
    frame,
)

_OUTPUT_KEPT = 64 << 10
_CHUNK = 64 << 10


class Member:
    """A rank. The selector calls back into it when its channel or its output can be read."""

    def __init__(self, config: RankConfig, child: Child, selector: selectors.BaseSelector) -> None:
        self.rank = config.rank
        self.child = child
        self.board = Path(config.board)
        self.stacks = Path(config.stacks)
        self.answer: FromRank | None = None
        self.broken = ""
        """Why its channel is of no use any more; empty while it is."""
        self._reader = FrameReader()
        self._unsent = b""
        self._output: deque[bytes] = deque()
        self._output_size = 0
        self._selector = selector
        child.channel.setblocking(False)
        os.set_blocking(child.output, False)
        selector.register(child.channel, selectors.EVENT_READ, self._on_channel)
        selector.register(child.output, selectors.EVENT_READ, self._on_output)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.child.pid

    @property
    def lost(self) -> bool:
        """Whether it has ended, or its channel is of no use."""
        return self.child.exitcode is not None or bool(self.broken)

    @property
    def waiting(self) -> bool:
        """Whether an answer is still to come."""
        return self.answer is None and not self.lost

    @property
    def exitcode(self) -> int:
        """How it ended; -9 for one that lives but cannot be talked to."""
        return -9 if self.child.exitcode is None else self.child.exitcode

    def begin(self, command: RunCase) -> None:
        """Sends a case; what the channel does not take at once follows as it drains."""
        self.answer = None
        self._unsent = frame(encode(command))
        self._write()

    def note_end(self) -> None:
        """After its process ended, reads what is left and drops the answer of no rank."""
        if self.child.exitcode is not None and self.answer is None and not self.broken:
            self._on_output()
            self._on_channel()

    def output_tail(self) -> str:
        """The end of what it printed."""
        self._on_output()
        return b"".join(self._output)[-4000:].decode(errors="replace")

    def leave(self) -> None:
        """Stops listening to it."""
        for item in (self.child.channel, self.child.output):
            try:
                self._selector.unregister(item)
            except (KeyError, ValueError):
                continue

    def _write(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self.child.channel.send(self._unsent) :]
        except BlockingIOError:
            events = selectors.EVENT_READ | selectors.EVENT_WRITE
            self._selector.modify(self.child.channel, events, self._on_channel)
            return
        except OSError as error:
            self._break(f"cannot be written to: {error}")
            return
        self._selector.modify(self.child.channel, selectors.EVENT_READ, self._on_channel)

    def _on_channel(self) -> None:
        if self._unsent:
            self._write()
        try:
            data = self.child.channel.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            self._break(f"cannot be read from: {error}")
            return
        if not data:
            self._break("closed its channel")
            return
        try:
            for payload in self._reader.feed(data):
                self.answer = decode_answer(payload)
        except (FrameError, msgspec.DecodeError) as error:
            self._break(f"sent something that is no message: {error}")

    def _on_output(self) -> None:
        if self.child.output < 0:
            return
        try:
            data = os.read(self.child.output, _CHUNK)
        except (BlockingIOError, OSError):
            return
        if not data:
            self._unregister_output()
            return
        self._output.append(data)
        self._output_size += len(data)
        while self._output_size - len(self._output[0]) > _OUTPUT_KEPT:
            self._output_size -= len(self._output.popleft())

    def _break(self, why: str) -> None:
        self.broken = why
        try:
            self._selector.unregister(self.child.channel)
        except (KeyError, ValueError):
            return

    def _unregister_output(self) -> None:
        try:
            self._selector.unregister(self.child.output)
        except (KeyError, ValueError):
            return

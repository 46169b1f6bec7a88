"""Messages between the controller and a rank. Everything in the ranks package may import this.

Each message is one frame: four bytes of length, big-endian, then msgpack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from fsdpfuzz.observations import RankReport

MAX_FRAME = 16 << 20
"""Bytes; a rank that sends more is broken."""


class RankConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank needs to know to join its process group."""

    rank: int
    world_size: int
    backend: str
    store: str
    """Path of the rendezvous file."""
    board: str
    stacks: str
    """Path of the file that takes the stacks of all threads on SIGUSR1."""
    plant: str | None = None


class RunCase(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """Run a case. Only rank 0 gets its JSON; the others receive it from rank 0."""

    case: bytes = b""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The rank has joined its process group."""

    rank: int
    torch: str


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The rank could not join; it ends after this."""

    rank: int
    error: str


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """The rank is through with the case."""

    report: RankReport


class Fork(msgspec.Struct, frozen=True, kw_only=True):
    """To the forkserver: fork a process; its channel and output pipe come along."""

    what: Literal["rank", "machine"]
    ticket: int
    config: bytes = b""


class Forked(msgspec.Struct, frozen=True, kw_only=True, tag="forked"):
    """From the forkserver: the process that a request asked for runs."""

    ticket: int
    pid: int


class Exited(msgspec.Struct, frozen=True, kw_only=True, tag="exited"):
    """From the forkserver: a process has ended; ``code`` is negative for a signal."""

    pid: int
    code: int


FromRank = Ready | Failed | Done

encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(RunCase).decode
decode_config = msgspec.msgpack.Decoder(RankConfig).decode
decode_fork = msgspec.msgpack.Decoder(Fork).decode
decode_notice: Callable[[bytes], Forked | Exited] = msgspec.msgpack.Decoder(Forked | Exited).decode
decode_answer: Callable[[bytes], FromRank] = msgspec.msgpack.Decoder(FromRank).decode


class FrameError(Exception):
    """What came over a channel is not a frame."""


class FrameReader:
    """Cuts a byte stream into frames."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that ``data`` completes; :class:`FrameError` if one is too large."""
        self._buffer += data
        frames = []
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4], "big")
            if size > self._limit:
                raise FrameError(f"a frame of {size} bytes; at most {self._limit} are allowed")
            if len(self._buffer) < 4 + size:
                break
            frames.append(bytes(self._buffer[4 : 4 + size]))
            del self._buffer[: 4 + size]
        return frames


def frame(payload: bytes) -> bytes:
    """The payload with its length in front."""
    return len(payload).to_bytes(4, "big") + payload

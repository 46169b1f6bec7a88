"""What the controller and a rank say to each other, and how it travels.

Each rank has a stream socket of its own. A frame is a magic number, a length and one
MessagePack message; anything else on the socket is garbage and costs the rank its life.
Nothing is pickled.
"""

from __future__ import annotations

import struct

import msgspec

from fsdpfuzz.observations import RankReport
from fsdpfuzz.wire._imported import Target
from fsdpfuzz.wire._machine import Backend

MAX_FRAME = 16 << 20
"""Bytes of the largest message."""

_HEADER = struct.Struct("<II")
# "fsfz" in memory; whatever else is written on the socket is told at once.
_MAGIC = 0x7A667366


class GarbageError(Exception):
    """Bytes on the channel that are no frame, or a frame that is no message."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank is told when it is forked."""

    rank: int
    world_size: int
    backend: Backend
    folder: str
    generation: int
    cores: tuple[int, ...] = ()
    """Those that it is to use, which are its controller's; none for all that it may."""
    injection: str | None = None
    target: Target | None = None
    """Code of your own that it may run."""
    taps: bool = False
    """Whether it is to tap the modules of each case, and do nothing else."""


class Run(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """To rank 0: the canonical JSON of the case to run, and its digest."""

    number: int
    case: bytes
    digest: str


class Come(msgspec.Struct, frozen=True, kw_only=True, tag="come"):
    """To the other ranks: a case is coming through the process group."""

    number: int


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """From a rank: it is in the process group and waits for a case."""

    rank: int
    torch: str
    gpus: int = 0
    """How many it sees."""


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """From a rank: it could not get ready."""

    rank: int
    reason: str


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """From a rank: what it saw of case ``number``."""

    number: int
    report: RankReport


Order = Run | Come
Reply = Ready | Failed | Answer

_encoder = msgspec.msgpack.Encoder()
_orders: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def frame(message: Order | Reply) -> bytes:
    """The message as it travels; :class:`ValueError` if it is larger than `MAX_FRAME`."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME:
        raise ValueError(f"a message of {len(body)} bytes, but {MAX_FRAME} are allowed")
    return _HEADER.pack(_MAGIC, len(body)) + body


def order(body: bytes) -> Order:
    """The message in a frame from the controller."""
    return _orders.decode(body)


def reply(body: bytes) -> Reply:
    """The message in a frame from a rank; :class:`GarbageError` if it is none."""
    try:
        return _replies.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise GarbageError(f"a frame that is no message: {error}") from None


class Frames:
    """Puts frames together from the pieces that a socket gives."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies that ``data`` completes; :class:`GarbageError` on a wrong header."""
        self._pending += data
        bodies = []
        start = 0
        while len(self._pending) - start >= _HEADER.size:
            magic, length = _HEADER.unpack_from(self._pending, start)
            # Before any of it is kept: a length that is garbage
            # would have the controller wait, and grow.
            if magic != _MAGIC or length > MAX_FRAME:
                raise GarbageError(f"garbage: {bytes(self._pending[start : start + 8])!r}")
            end = start + _HEADER.size + length
            if len(self._pending) < end:
                break
            bodies.append(bytes(self._pending[start + _HEADER.size : end]))
            start = end
        del self._pending[:start]
        return bodies

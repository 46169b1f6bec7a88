"""A rank's notes to whoever finds it dead: what it was doing, and its last collectives.

The board is a small memory-mapped file. Writing costs a few microseconds and no system
call, and the controller can read it whatever became of the rank.
"""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_STAGE_BYTES = 120
_SLOT_BYTES = 64
_SLOTS = 256
_COUNT = struct.Struct("<Q")
_SIZE = _STAGE_BYTES + _COUNT.size + _SLOTS * _SLOT_BYTES


class Board:
    """The writing side, in the rank."""

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.truncate(_SIZE)
            self._map = mmap.mmap(file.fileno(), _SIZE)
        self._count = 0

    def stage(self, text: str) -> None:
        """Says what the rank is doing now, for example ``case:forward[3]``."""
        data = text.encode()[:_STAGE_BYTES]
        self._map[:_STAGE_BYTES] = data.ljust(_STAGE_BYTES, b"\0")

    def current_stage(self) -> str:
        """What the rank said last."""
        return self._map[:_STAGE_BYTES].rstrip(b"\0").decode(errors="replace")

    def collective(self, name: str, numel: int, dtype: str) -> None:
        """Notes a collective that is about to be issued."""
        start = _STAGE_BYTES + _COUNT.size + (self._count % _SLOTS) * _SLOT_BYTES
        data = f"{name} of {numel} {dtype}".encode()[:_SLOT_BYTES]
        self._map[start : start + _SLOT_BYTES] = data.ljust(_SLOT_BYTES, b"\0")
        self._count += 1
        _COUNT.pack_into(self._map, _STAGE_BYTES, self._count)

    def clear(self) -> None:
        """Starts over for the next case."""
        self._count = 0
        _COUNT.pack_into(self._map, _STAGE_BYTES, 0)
        self.stage("")


@dataclass(frozen=True, slots=True)
class BoardReading:
    """What stood on a board: the stage, and the last collectives by number from 0."""

    stage: str
    first: int
    """Number of the oldest collective that is still there."""
    collectives: tuple[str, ...]

    def at(self, number: int) -> str | None:
        """The collective with this number; None if it was not issued or is overwritten."""
        index = number - self.first
        return self.collectives[index] if 0 <= index < len(self.collectives) else None


def read_board(path: Path) -> BoardReading:
    """What a rank left on its board; empty if it never made one."""
    try:
        data = path.read_bytes()
    except OSError:
        return BoardReading("", 0, ())
    if len(data) < _SIZE:
        return BoardReading("", 0, ())
    stage = data[:_STAGE_BYTES].rstrip(b"\0").decode(errors="replace")
    (count,) = _COUNT.unpack_from(data, _STAGE_BYTES)
    first = max(0, count - _SLOTS)
    slots = []
    for number in range(first, count):
        start = _STAGE_BYTES + _COUNT.size + (number % _SLOTS) * _SLOT_BYTES
        slots.append(data[start : start + _SLOT_BYTES].rstrip(b"\0").decode(errors="replace"))
    return BoardReading(stage, first, tuple(slots))


def disagreement(readings: Sequence[BoardReading]) -> tuple[tuple[int, ...], str]:
    """The ranks that differ from the majority at the first collective that is not the same.

    Empty when all ranks issued the same. With as many ranks on one side as on the other,
    the side without rank 0 counts as odd.
    """
    start = max((reading.first for reading in readings), default=0)
    stop = max((reading.first + len(reading.collectives) for reading in readings), default=0)
    for number in range(start, stop):
        issued = [reading.at(number) or "nothing" for reading in readings]
        if len(set(issued)) == 1:
            continue
        counts = Counter(issued)
        usual = max(counts, key=lambda text: (counts[text], text == issued[0]))
        odd = tuple(rank for rank, text in enumerate(issued) if text != usual)
        told = "; ".join(f"rank {rank} issued {text}" for rank, text in enumerate(issued))
        return odd, f"collective {number}: {told}"
    return (), ""

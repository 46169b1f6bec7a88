"""A rank's flight recorder: what it is doing and its last collectives, readable after its death.

A file of fixed layout, mapped into the rank's memory; a write costs about a microsecond and
needs no system call, and the controller reads it whatever became of the rank.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

RING = 256
"""How many collectives a recorder remembers."""
MAX_STAGE = 160

_HEAD = struct.Struct("<QQH")  # issued, returned, length of the stage
_RETURNED = struct.Struct("<Q")
_ISSUED = struct.Struct("<Q")
_STAGE_AT = _HEAD.size
_RING_AT = 256
_ENTRY = struct.Struct("<Q40s16sQ")  # number from 1, name, dtype, elements
SIZE = _RING_AT + RING * _ENTRY.size


@dataclass(frozen=True, slots=True)
class Collective:
    """One call of a collective: its number on this rank from 1, and what went in."""

    number: int
    name: str
    numel: int
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}#{self.number} of {self.numel} {self.dtype}"

    def same(self, other: Collective) -> bool:
        """Whether both are the same call on different ranks."""
        return (self.name, self.numel, self.dtype) == (other.name, other.numel, other.dtype)


class FlightRecorder:
    """The writing side, in the rank."""

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.truncate(SIZE)
            self._memory = mmap.mmap(file.fileno(), SIZE)
        self._issued = 0
        self._stage = ""

    @property
    def now(self) -> str:
        """The current stage."""
        return self._stage

    def begin(self, stage: str) -> None:
        """Forgets the collectives of the last case."""
        self._issued = 0
        _ISSUED.pack_into(self._memory, 0, 0)
        _RETURNED.pack_into(self._memory, 8, 0)
        self.stage(stage)

    def stage(self, text: str) -> None:
        """Says what the rank does from now on, for example ``case:backward[3]``."""
        self._stage = text
        data = text.encode(errors="replace")[:MAX_STAGE]
        self._memory[_STAGE_AT : _STAGE_AT + len(data)] = data
        struct.pack_into("<H", self._memory, 16, len(data))

    def collective(self, name: str, numel: int, dtype: str) -> Callable[[], None]:
        """Notes a collective that is about to be issued; call the result when it returned."""
        number = self._issued = self._issued + 1
        place = _RING_AT + (number - 1) % RING * _ENTRY.size
        # Before the count: whoever reads in between finds no number that has no entry.
        _ENTRY.pack_into(self._memory, place, number, name.encode(), dtype.encode(), numel)
        _ISSUED.pack_into(self._memory, 0, number)

        def returned() -> None:
            _RETURNED.pack_into(self._memory, 8, number)

        return returned


@dataclass(frozen=True, slots=True)
class Recording:
    """What a recorder said."""

    stage: str = ""
    issued: int = 0
    returned: int = 0
    collectives: tuple[Collective, ...] = ()
    """The last ones, oldest first."""

    def at(self, number: int) -> Collective | None:
        """The collective of that number, if it was issued and is remembered."""
        for collective in reversed(self.collectives):
            if collective.number == number:
                return collective
        return None

    @property
    def last(self) -> str:
        """One line on the last collective, empty if there was none."""
        if not self.collectives:
            return ""
        word = "waits in" if self.returned < self.issued else "is past"
        return f"{word} {self.collectives[-1]}"


def read_recording(path: Path) -> Recording:
    """What the recorder says now; an empty recording if it was never made."""
    try:
        data = path.read_bytes()
    except OSError:
        return Recording()
    if len(data) < SIZE:
        return Recording()
    issued, returned, length = _HEAD.unpack_from(data)
    stage = data[_STAGE_AT : _STAGE_AT + min(length, MAX_STAGE)].decode(errors="replace")
    found = []
    for number in range(max(1, issued - RING + 1), issued + 1):
        kept, name, dtype, numel = _ENTRY.unpack_from(
            data, _RING_AT + (number - 1) % RING * _ENTRY.size
        )
        # Another number was written over it while the file was read.
        if kept == number:
            found.append(Collective(number, _text(name), numel, _text(dtype)))
    return Recording(stage, issued, returned, tuple(found))


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode(errors="replace")

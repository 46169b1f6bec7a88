"""Losses that are exact zeros on one rank."""

from __future__ import annotations

import msgspec

from fsdpfuzz.case import Op
from fsdpfuzz.strategies.drawing import Drawing


def draw(d: Drawing) -> None:
    """Of one micro-batch, or of all, on one rank. Shrinks towards none, then towards rank 0."""
    program: list[Op] = list(d.case.program)
    waiting = [i for i, op in enumerate(program) if op.waits]
    if not d.chance(11) or d.case.world_size == 1 or d.case.probes or not waiting:
        return
    rank, which = d.between(0, d.case.world_size - 1), d.between(0, len(waiting) - 1)
    for i in waiting if d.chance(35) else waiting[which : which + 1]:
        program[i] = msgspec.structs.replace(program[i], masked=rank)
    d.put(program=tuple(program))

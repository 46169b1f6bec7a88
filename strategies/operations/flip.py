"""Ranks that take another path from some time on."""

from __future__ import annotations

from fsdpfuzz.case import Flip
from fsdpfuzz.strategies.operations.program import Program


def draw(program: Program) -> None:
    """All ranks, some of them from the start, or some of them later. Shrinks towards none."""
    d = program.d
    if d.parting == "never" or not d.a.switches:
        return
    size = d.case.world_size
    some = d.between(1, max(1, 2**size - 2))
    ranks = tuple(rank for rank in range(size) if some >> rank & 1)
    if d.parting == "all":
        ranks = tuple(range(size))
    first = d.parting == "first"
    if not first and len(program.iterations) < 2:
        program.iterations.append(list(program.iterations[0]))
        program.gaps.append(list(program.gaps[-1]))
    where = 0 if first else d.between(1, len(program.iterations) - 1)
    program.gaps[where].append(Flip(path=d.pick(d.a.switches), ranks=ranks))

"""Units that are sharded by hand."""

from __future__ import annotations

from fsdpfuzz.case.operations import Reshard
from fsdpfuzz.strategies.operations.program import Program


def draw(program: Program) -> None:
    """One unit between a forward and its backward, or between iterations, now and then both.

    Shrinks towards none.
    """
    d = program.d
    if d.a.fsdp1 or d.parting != "never" or not program.iterations or not d.chance(10):
        return
    iteration, between, both = d.pick(program.iterations), d.chance(30), d.chance(25)
    where = [i for i, op in enumerate(iteration) if op.waits]
    at, unit, gap = d.pick(where), d.pick(d.a.units), d.pick(program.gaps)
    if any(op.renews for op in program.operations()):
        return  # units may be others by then
    if between or both:
        gap.append(Reshard(unit=unit))
    if both or not between:
        iteration.insert(at + 1, Reshard(unit=unit))

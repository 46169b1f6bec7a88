"""Units that are gathered by hand."""

from __future__ import annotations

from fsdpfuzz.case.operations import Op, Unshard
from fsdpfuzz.strategies.operations.program import Program


def draw(program: Program) -> None:
    """One unit or two, before some forward with a backward. Shrinks towards none, then at once."""
    d = program.d
    if d.a.fsdp1 or d.parting != "never" or not program.iterations or not d.chance(10):
        return
    iteration = d.pick(program.iterations)
    where = [i for i, op in enumerate(iteration) if op.waits]
    units: tuple[str, ...] = d.a.units
    gathered: list[Op] = []
    for _ in range(d.between(1, 2)):
        async_op = d.chance(50)
        wait = d.chance(50) and async_op
        gathered.append(Unshard(unit=d.pick(units), async_op=async_op, wait=wait))
    at = d.pick(where)
    renewed = any(op.renews for op in program.operations())
    if not renewed:  # else units may be others by then
        iteration[at:at] = gathered

"""Training under ``FSDPMemTracker``."""

from __future__ import annotations

from fsdpfuzz.case import ITERATION, Fsdp2Plan, ZeroGrad
from fsdpfuzz.strategies.drawing import Drawing

ITERATIONS = (1, 2, 3)


def draw(d: Drawing) -> None:
    """fsdp2 with the root as a unit, through plain iterations. Shrinks towards no tracker."""
    wanted = d.chance(4, memory=60)
    whole = isinstance(d.case.plan, Fsdp2Plan) and "" in d.a.options and d.trains
    if not wanted or not whole or d.case.twins or d.parting != "never":
        return
    if d.a.imported is not None:
        return  # what must lie on a rank at once depends on what it computes
    if any(not c.path and c.side == "around" for c in d.case.checkpoints):
        return
    iteration = ITERATION
    if d.chance(60):
        iteration = (*iteration, ZeroGrad())
    d.put(program=iteration * d.pick(ITERATIONS), probes=("mem_tracker",))

"""A function that the user applies to each module between iterations."""

from __future__ import annotations

from fsdpfuzz.case.operations import Apply
from fsdpfuzz.case.operations.apply import hidden, may_miss_the_shards
from fsdpfuzz.strategies.drawing import LOTS
from fsdpfuzz.strategies.operations.forward import evaluates_before_steps
from fsdpfuzz.strategies.operations.program import Program

_WHEN = range(LOTS - 31, LOTS - 23)
"""Next to where `interrupt` is drawn; see `Program.seldom`."""


def draw(program: Program) -> None:
    """One or two in any gap, of the root or a unit.

    Shrinks towards none, then towards one that scales all parameters of the model.
    """
    d = program.d
    if program.seldom not in _WHEN or d.a.split_ties:
        return
    asked = []
    for _ in range(d.between(1, 2)):
        gap, which, smooth = d.pick(program.gaps), d.between(0, 127), d.chance(50)
        asked.append((gap, which, smooth))
    # The plan may change on the way.
    renewed = any(op.renews for each in program.gaps for op in each)
    units = [path for path in d.a.units if path and not hidden(d.a, path)]
    places = [""] if renewed else ["", *units]
    # An evaluation before a step leaves units of fsdp2 whole.
    if not d.a.fsdp1 and (evaluates_before_steps(program) or program.lacks_backward):
        return
    if any(not b.fsdp1 and may_miss_the_shards(b) for b in program.drawn.under_each_plan):
        return
    for gap, which, smooth in asked:
        # Twice in four of the root.
        module = places[which // 2 % len(places)] if which % 2 else ""
        # With fsdp2 before a lone forward, which leaves some units whole.
        gap.insert(len(gap) if d.a.fsdp1 else 0, Apply(module=module, smooth=smooth))

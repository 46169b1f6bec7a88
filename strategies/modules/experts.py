"""Experts beside a router."""

from __future__ import annotations

from fsdpfuzz.case import Node
from fsdpfuzz.case.modules.experts import Experts
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot

_FEW = 2
"""Leaves of an expert of which there may be three."""


class ExpertsStrategy(ModuleStrategy):
    """Two or three, often all alike; the router counts for a leaf."""

    holds = True
    percent = 12

    def fits(self, growth: Growth, slot: Slot) -> bool:
        """Not in another one: each has a model of its own for each expert."""
        return super().fits(growth, slot) and not slot.few

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards two alike, one of which each row goes to."""
        d = growth.d
        growth.leaves -= 1
        number, differ = d.between(2, 3), d.chance(50)
        here = slot.inside(out=slot.width, few=True)
        before = growth.leaves
        first = growth.body(here)
        used = before - growth.leaves
        if used > _FEW:
            number = 2
        others = [growth.body(here) if differ else first for _ in range(number - 1)]
        if not differ:
            growth.leaves -= (number - 1) * used
        top, start = d.between(1, 2), d.between(0, 2)
        return Experts(children=(first, *others), top=top, start=start % number)


STRATEGY = ExpertsStrategy()

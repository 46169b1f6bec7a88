"""A module that changes in place what another one has put out."""

from __future__ import annotations

from fsdpfuzz.case import Node
from fsdpfuzz.case.modules.in_place import InPlace
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot, joined


class InPlaceStrategy(ModuleStrategy):
    """Around a linear layer, and what may come before it."""

    holds = True
    percent = 12

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards the output itself of one layer."""
        # A unit that puts out such a view is known to break.
        view, more = growth.d.chance(35), growth.d.chance(30)
        blocks = growth.chain(slot.inside(out=slot.width)) if more else []
        last = growth.linear(slot.width, slot.width)
        return InPlace(body=joined([*blocks, last]), view=view)


STRATEGY = InPlaceStrategy()

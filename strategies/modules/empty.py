"""A parameter without elements."""

from __future__ import annotations

from fsdpfuzz.case import Linear, Node
from fsdpfuzz.case.modules.empty import Empty
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot


class EmptyStrategy(ModuleStrategy):
    """Anywhere; trained or frozen as others are, in a unit with others or alone."""

    percent = 3

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards itself: nothing varies."""
        # fsdp2 has no gradient for it, so that hardly anything else is looked at.
        if growth.d.chance(75) and growth.d.case.api == "fsdp2":
            return Linear(out=slot.width, bias=False)
        return Empty()


STRATEGY = EmptyStrategy()

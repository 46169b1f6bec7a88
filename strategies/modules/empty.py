"""A parameter without elements."""

from __future__ import annotations

from fsdpfuzz.case import Node
from fsdpfuzz.case.modules.empty import Empty
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot


class EmptyStrategy(ModuleStrategy):
    """Anywhere; trained or frozen as others are, in a unit with others or alone."""

    percent = 3
    # Which has no gradient for it, so that hardly anything else is looked at.
    percent_of_fsdp2 = 1

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards itself: nothing varies."""
        return Empty()


STRATEGY = EmptyStrategy()

"""A module that is called with a keyword argument."""

from __future__ import annotations

from fsdpfuzz.case import Node
from fsdpfuzz.case.modules.keyed import Keyed
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot


class KeyedStrategy(ModuleStrategy):
    """Around a chain that keeps the width."""

    holds = True

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards the input as the keyword, around one block."""
        body = growth.body(slot.inside(out=slot.width))
        return Keyed(body=body, added=growth.d.chance(50))


STRATEGY = KeyedStrategy()

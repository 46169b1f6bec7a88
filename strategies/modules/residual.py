"""A residual connection."""

from __future__ import annotations

from fsdpfuzz.case import Node, Residual
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot


class ResidualStrategy(ModuleStrategy):
    """Around a chain that keeps the width."""

    holds = True

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards one block."""
        return Residual(body=growth.body(slot.inside(out=slot.width)))


STRATEGY = ResidualStrategy()

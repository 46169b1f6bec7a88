"""``nn.Linear``."""

from __future__ import annotations

from fsdpfuzz.case import Node
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot


class LinearStrategy(ModuleStrategy):
    """A linear layer, which every model may have."""

    percent = 0

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards one output, without bias."""
        return growth.linear(slot.width, growth.width(slot.out))


STRATEGY = LinearStrategy()

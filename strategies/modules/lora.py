"""A linear layer with a low-rank adapter."""

from __future__ import annotations

from fsdpfuzz.case import Lora, Node
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot


class LoraStrategy(ModuleStrategy):
    """An adapter beside a linear layer; counts for two leaves."""

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards rank 1, one output, no bias."""
        growth.leaves -= 1
        rank = growth.d.between(1, 3)
        return Lora(out=growth.width(slot.out), rank=rank, bias=growth.d.chance(50))


STRATEGY = LoraStrategy()

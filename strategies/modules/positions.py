"""Learnt embeddings of positions."""

from __future__ import annotations

from fsdpfuzz.case import TOKENS, Node, Positions
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot


class PositionsStrategy(ModuleStrategy):
    """Added to a sequence."""

    percent = 12

    def fits(self, growth: Growth, slot: Slot) -> bool:
        """Behind an embedding, or for inputs that are sequences."""
        return slot.width != TOKENS and growth.d.case.inputs.length is not None

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards as many rows as there are positions."""
        return Positions(rows=(growth.d.case.inputs.length or 1) + growth.d.between(0, 2))


STRATEGY = PositionsStrategy()

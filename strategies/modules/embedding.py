"""``nn.Embedding`` of tokens."""

from __future__ import annotations

from fsdpfuzz.case import TOKENS, Embedding, Node
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot


class EmbeddingStrategy(ModuleStrategy):
    """The first layer of most models that take tokens."""

    percent = 100

    def fits(self, growth: Growth, slot: Slot) -> bool:
        """In front."""
        return slot.width == TOKENS

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards one row of width 1."""
        out, rows = growth.width(), growth.d.width()
        # As many rows as a square model is wide: its weight can then be tied to that of a layer.
        return Embedding(out=out, rows=growth.square or rows)


STRATEGY = EmbeddingStrategy()

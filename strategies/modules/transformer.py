"""``nn.Transformer`` with tied embeddings."""

from __future__ import annotations

from fsdpfuzz.case import TOKENS, Node, Transformer
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot


class TransformerStrategy(ModuleStrategy):
    """Encoder, decoder and a head that shares the embedding's weight; counts for four leaves."""

    percent = 8

    def fits(self, growth: Growth, slot: Slot) -> bool:
        """For tokens."""
        return slot.width == TOKENS

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards one layer of one head on each side, without dropout."""
        d = growth.d
        growth.leaves -= 3
        heads = d.between(1, 2)
        return Transformer(
            rows=d.between(2, 9),
            # Divisible by the heads, as attention wants it, and as wide as its norms need.
            width=heads * d.between(3, 4),
            heads=heads,
            hidden=d.width(),
            encoders=d.between(1, 2),
            decoders=d.between(1, 2),
            dropout=d.pick((0.0, 0.0, 0.1)),
            fn="silu",
        )


STRATEGY = TransformerStrategy()

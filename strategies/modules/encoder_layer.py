"""``nn.TransformerEncoderLayer``."""

from __future__ import annotations

from fsdpfuzz.case import EncoderLayer, Node
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot

MIN_WIDTH = 3
"""What its norms need."""


class EncoderLayerStrategy(ModuleStrategy):
    """Self-attention over a sequence, with and without a causal mask; counts for two leaves."""

    percent = 12

    def fits(self, growth: Growth, slot: Slot) -> bool:
        """For sequences that are wide enough."""
        return slot.width >= MIN_WIDTH and growth.d.case.inputs.length is not None

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards one head, no dropout, no mask."""
        d = growth.d
        growth.leaves -= 1
        return EncoderLayer(
            heads=d.pick([n for n in range(1, slot.width + 1) if slot.width % n == 0]),
            hidden=d.width(),
            dropout=d.pick((0.0, 0.0, 0.0, 0.1)),
            norm_first=d.chance(50),
            causal=d.chance(50),
            fn="silu",
        )


STRATEGY = EncoderLayerStrategy()

"""``nn.MultiheadAttention`` that is given one tensor three times."""

from __future__ import annotations

from typing import Literal

from fsdpfuzz.case import Node
from fsdpfuzz.case.modules.attention import Attention
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot

_MASKS: tuple[Literal["none", "causal", "padding"], ...] = ("none", "causal", "padding")


class AttentionStrategy(ModuleStrategy):
    """Self-attention over a sequence, with and without masks, as models have it by themselves."""

    percent = 25

    def fits(self, growth: Growth, slot: Slot) -> bool:
        """For sequences."""
        return slot.width > 0 and growth.d.case.inputs.length is not None

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards one head, no bias, no mask, batches first."""
        d = growth.d
        return Attention(
            heads=d.pick([n for n in range(1, slot.width + 1) if slot.width % n == 0]),
            bias=d.chance(50),
            mask=d.pick(_MASKS),
            weights=d.chance(30),
            batch_first=not d.chance(30),
        )


STRATEGY = AttentionStrategy()

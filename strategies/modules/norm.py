"""``nn.LayerNorm`` and ``nn.RMSNorm``."""

from __future__ import annotations

from fsdpfuzz.case import Node, Norm
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot

MIN_WIDTH = {"layer": 3, "rms": 2}
"""Below, what is normalised is constant or a sign, and the gradient is rounding alone."""


class NormStrategy(ModuleStrategy):
    """A norm over the last dimension."""

    def fits(self, growth: Growth, slot: Slot) -> bool:
        """Behind data that is wide enough."""
        return slot.width >= MIN_WIDTH["rms"]

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards ``LayerNorm`` with its parameters."""
        rms = growth.d.chance(50) or slot.width < MIN_WIDTH["layer"]
        return Norm(variant="rms" if rms else "layer", affine=not growth.d.chance(19))


STRATEGY = NormStrategy()

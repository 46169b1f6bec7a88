"""A convolution and its batch norm."""

from __future__ import annotations

from fsdpfuzz.case import Node
from fsdpfuzz.case.modules.conv_norm import ConvNorm
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot

MIN_WIDTH = 3
"""Two values are normalised to their signs, and the gradient is rounding alone."""


class ConvNormStrategy(ModuleStrategy):
    """One to four channels."""

    percent = 15

    def fits(self, growth: Growth, slot: Slot) -> bool:
        """Behind data that is wide enough, however small the batch is."""
        return slot.width >= MIN_WIDTH

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards one channel, and a norm with parameters."""
        return ConvNorm(channels=growth.d.between(1, 4), affine=not growth.d.chance(19))


STRATEGY = ConvNormStrategy()

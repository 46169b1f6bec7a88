"""One learnt number."""

from __future__ import annotations

from fsdpfuzz.case import Gain, Node
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot


class GainStrategy(ModuleStrategy):
    """A factor of one element, rarely one without a dimension, which FSDP refuses."""

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards one with a dimension."""
        return Gain(scalar=growth.d.chance(4))


STRATEGY = GainStrategy()

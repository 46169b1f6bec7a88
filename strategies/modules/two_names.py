"""A layer that stands in its module under two names."""

from __future__ import annotations

from fsdpfuzz.case import Node
from fsdpfuzz.case.modules.two_names import TwoNames
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot


class TwoNamesStrategy(ModuleStrategy):
    """Counts for two leaves."""

    percent = 10

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards a layer without a bias."""
        growth.leaves -= 1
        return TwoNames(bias=growth.d.chance(50))


STRATEGY = TwoNamesStrategy()

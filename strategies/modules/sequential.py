"""``nn.Sequential``."""

from __future__ import annotations

from fsdpfuzz.case import Node, Sequential
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot


class SequentialStrategy(ModuleStrategy):
    """A chain in a chain."""

    holds = True

    def fits(self, growth: Growth, slot: Slot) -> bool:
        """Anywhere."""
        return True

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards one child."""
        inner = slot.inside(out=slot.out, steady=slot.steady)
        return Sequential(children=tuple(growth.chain(inner)))


STRATEGY = SequentialStrategy()

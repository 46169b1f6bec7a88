"""Layers of which each forward leaves one out."""

from __future__ import annotations

from fsdpfuzz.case import Node
from fsdpfuzz.case.modules.layer_drop import LayerDrop
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot


class LayerDropStrategy(ModuleStrategy):
    """Two or three chains that keep the width."""

    holds = True
    percent = 12

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards two blocks, all of which the first forward calls."""
        number, start = growth.d.between(2, 3), growth.d.between(0, 3)
        children = tuple(growth.body(slot.inside(out=slot.width)) for _ in range(number))
        return LayerDrop(children=children, start=start % (number + 1))


STRATEGY = LayerDropStrategy()

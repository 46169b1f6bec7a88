"""Buffers that take part."""

from __future__ import annotations

from fsdpfuzz.case import Buffered, Node
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot


class BufferedStrategy(ModuleStrategy):
    """A buffer, persistent or not, and one that forward updates."""

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards a persistent buffer that stays as it is."""
        return Buffered(persistent=not growth.d.chance(50), updates=growth.d.chance(50))


STRATEGY = BufferedStrategy()

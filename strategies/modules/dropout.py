"""Dropout."""

from __future__ import annotations

from fsdpfuzz.case import Dropout, Node
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot


class DropoutStrategy(ModuleStrategy):
    """Seeded before every forward, so that the reference drops the same elements."""

    percent = 20

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards few dropped elements."""
        return Dropout(p=growth.d.pick((0.1, 0.5)))


STRATEGY = DropoutStrategy()

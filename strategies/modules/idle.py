"""Parameters that no forward uses."""

from __future__ import annotations

from typing import ClassVar

from fsdpfuzz.case import Idle, Node
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot


class IdleStrategy(ModuleStrategy):
    """A layer that is never called."""

    percent: ClassVar[int] = 35

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """There is only one."""
        return Idle()


STRATEGY = IdleStrategy()

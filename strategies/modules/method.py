"""A module that is called by another method than ``forward``."""

from __future__ import annotations

from fsdpfuzz.case import Node
from fsdpfuzz.case.modules.method import Method
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot


class MethodStrategy(ModuleStrategy):
    """Around any chain; fsdp1 knows no other method than ``forward``."""

    holds = True
    percent = 30

    def fits(self, growth: Growth, slot: Slot) -> bool:
        """Anywhere under fsdp2."""
        return not growth.d.a.fsdp1

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards one block."""
        return Method(body=growth.body(slot.inside(out=slot.out, steady=slot.steady)))


STRATEGY = MethodStrategy()

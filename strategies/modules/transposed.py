"""A linear layer whose weight lies in memory by columns."""

from __future__ import annotations

from fsdpfuzz.case import Node
from fsdpfuzz.case.modules.transposed import Transposed
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot


class TransposedStrategy(ModuleStrategy):
    """In place of a linear layer."""

    percent = 6
    # Which refuses it, so that nothing else is looked at.
    percent_of_fsdp2 = 1

    def fits(self, growth: Growth, slot: Slot) -> bool:
        """Behind more than one column."""
        return slot.width > 1

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards two outputs, without bias."""
        out, bias = max(2, growth.width(slot.out)), growth.d.chance(50)
        return Transposed(out=out, bias=bias)


STRATEGY = TransposedStrategy()

"""A container with a parameter of its own."""

from __future__ import annotations

from fsdpfuzz.case import Matrix, Node
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot


class MatrixStrategy(ModuleStrategy):
    """Around any chain."""

    holds = True

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards one block, without a buffer."""
        body = growth.body(slot.inside(out=slot.out, steady=slot.steady))
        return Matrix(body=body, buffered=growth.d.chance(50))


STRATEGY = MatrixStrategy()

"""A module that returns several tensors."""

from __future__ import annotations

from fsdpfuzz.case import Node
from fsdpfuzz.case.modules.outputs import Outputs
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot


class OutputsStrategy(ModuleStrategy):
    """Around a chain that keeps the width; what is returned is used as a whole or in part."""

    holds = True

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards a tuple of which the second counts, around one block."""
        body = growth.body(slot.inside(out=slot.width))
        form = growth.d.pick(("tuple", "tuple", "dict", "dataclass"))
        return Outputs(body=body, form=form, both=growth.d.chance(35))  # type: ignore[arg-type]


STRATEGY = OutputsStrategy()

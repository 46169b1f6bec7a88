"""A module that keeps a part of the loss beside its output."""

from __future__ import annotations

from fsdpfuzz.case import Node
from fsdpfuzz.case.modules.side_output import SideOutput
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot


class SideOutputStrategy(ModuleStrategy):
    """Around a chain that keeps the width; with a layer it counts for one leaf more."""

    holds = True
    percent = 12

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards what is kept of the output itself, around one block."""
        on = growth.d.pick(("no", "input", "output"))
        growth.leaves -= on != "no"
        return SideOutput(body=growth.body(slot.inside(out=slot.width)), on=on)  # type: ignore[arg-type]


STRATEGY = SideOutputStrategy()
"""A module that keeps a part of the loss beside its output."""

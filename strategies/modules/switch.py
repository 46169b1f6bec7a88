"""A module that runs one of several paths."""

from __future__ import annotations

from fsdpfuzz.case import TOKENS, Node, Switch
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot


class SwitchStrategy(ModuleStrategy):
    """Two chains, of which the second runs once an operation flips the switch."""

    holds = True
    percent = 10

    def fits(self, growth: Growth, slot: Slot) -> bool:
        """In the outermost chain, once: there a unit for each path is easy to make."""
        return slot.width != TOKENS and slot.depth == 1 and growth.d.parting == "never"

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards two blocks, and a program that never flips."""
        growth.d.parting = growth.d.pick(("never", "all"))
        # Either path alone has to train something.
        first = growth.trained(slot.inside(out=slot.out))
        out = first.width_after(slot.width)
        return Switch(children=(first, growth.trained(slot.inside(out=out))))


STRATEGY = SwitchStrategy()

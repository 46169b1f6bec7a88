"""A module that is called several times."""

from __future__ import annotations

from typing import Literal

from fsdpfuzz.case import TOKENS, Node, Repeat, Sequential
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot

NoGrad = Literal["off", "body", "first_child"]


class RepeatStrategy(ModuleStrategy):
    """Around a chain that keeps the width, now and then also called without grad."""

    holds = True

    def fits(self, growth: Growth, slot: Slot) -> bool:
        """Where nothing around it repeats it: values that grow with each call would explode."""
        return slot.width != TOKENS and slot.once

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards two calls of one block."""
        body = growth.body(slot.inside(out=slot.width, once=False))
        times = growth.d.between(2, 3)
        no_grad: NoGrad = "off"
        if growth.d.chance(38):
            no_grad = "body"
            first = body.children[0] if isinstance(body, Sequential) else None
            if first is not None and first.width_after(slot.width) == slot.width:
                no_grad = growth.d.pick(("body", "first_child"))
        return Repeat(body=body, times=times, no_grad=no_grad)


STRATEGY = RepeatStrategy()

"""A linear layer whose weight is computed from other parameters."""

from __future__ import annotations

from typing import Literal

from fsdpfuzz.case import Node
from fsdpfuzz.case.modules.parametrized import Parametrized
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot

_FORMS: tuple[Literal["weight_norm", "weight_norm_dim1", "orthogonal"], ...] = (
    "weight_norm",
    "weight_norm",
    "weight_norm_dim1",
    "orthogonal",
)


class ParametrizedStrategy(ModuleStrategy):
    """In place of a linear layer."""

    percent = 17

    def fits(self, growth: Growth, slot: Slot) -> bool:
        """Behind data that is wide enough for directions."""
        return slot.width > 1

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards ``weight_norm``, one output, no bias."""
        form = growth.d.pick(_FORMS)
        out = growth.width(slot.out)
        if out == 1 and form == "weight_norm_dim1":
            form = "weight_norm"
        return Parametrized(out=out, bias=growth.d.chance(50), form=form)


STRATEGY = ParametrizedStrategy()

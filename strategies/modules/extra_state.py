"""A module whose state dict holds what is neither a parameter nor a buffer."""

from __future__ import annotations

from fsdpfuzz.case import Node
from fsdpfuzz.case.modules import ExtraState
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot


class ExtraStateStrategy(ModuleStrategy):
    """Extra state, as a tensor or a dict, and one that forward updates."""

    percent = 12

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards a tensor that stays as it is."""
        return ExtraState(as_dict=growth.d.chance(50), counts=growth.d.chance(50))


STRATEGY = ExtraStateStrategy()

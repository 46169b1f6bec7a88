"""Functions without parameters."""

from __future__ import annotations

from fsdpfuzz.case import Activation, ActivationName, Node
from fsdpfuzz.strategies.modules.growth import Growth, ModuleStrategy, Slot

_SMOOTH: tuple[ActivationName, ...] = ("gelu", "silu", "tanh", "softplus")
"""A kink would make float32 and float64 take different sides of it."""


class ActivationStrategy(ModuleStrategy):
    """A smooth function."""

    def draw(self, growth: Growth, slot: Slot) -> Node:
        """Shrinks towards GELU."""
        return Activation(fn=growth.d.pick(_SMOOTH))


STRATEGY = ActivationStrategy()

"""``nn.Sequential`` whose children may ask to be recomputed."""

from __future__ import annotations

from torch import Tensor, nn

from fsdpfuzz.steps.checkpointing import call


class Chain(nn.Sequential):
    """``nn.Sequential`` whose children may ask to be recomputed."""

    def forward(self, input: Tensor) -> Tensor:
        """Calls the children in order."""
        for module in self:
            input = call(module, input)
        return input

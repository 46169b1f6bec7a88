"""Layers of which each forward leaves one out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fsdpfuzz.steps.checkpointing import call


class LayerDrop(nn.Module):
    """Leaves out one of its layers in each forward in train mode, in turn."""

    def __init__(self, layers: list[nn.Module], start: int = 0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.start = start

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape of ``x``."""
        # The seed is the number of the forward, and a recomputation restores it.
        left_out = (torch.initial_seed() + self.start) % (len(self.layers) + 1) - 1
        for i, layer in enumerate(self.layers):
            if i != left_out or not self.training:
                x = call(layer, x)
        return x

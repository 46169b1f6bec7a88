"""What is minimised."""

from __future__ import annotations

import torch
from torch import Tensor

PROJECTION = 7_919
"""What is added to a case's seed for the weights of the loss."""


# The weights come from a generator on the CPU, so that they are the same on every rank and device.
def projection(output: Tensor, seed: int) -> Tensor:
    """A fixed random projection of the output over its batch size: a plain sum hides much."""
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(seed + PROJECTION))
    return (output * weights.to(output)).sum() / len(output)

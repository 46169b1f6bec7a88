"""What goes into the model: the same numbers for the same seed, forward and rank."""

from __future__ import annotations

import torch
from torch import Tensor

STRIDE = 8
"""Seeds between one forward's inputs and the next one's: one for each rank."""


# Drawn on the CPU: a GPU draws other numbers for the same seed.
def seeded(seed: int, i: int, rank: int) -> torch.Generator:
    """A source of random numbers for the forward number ``i``, another one on each rank."""
    return torch.Generator().manual_seed(seed + STRIDE * i + rank + 1)


def dense(
    shape: tuple[int, ...],
    seed: int,
    i: int,
    rank: int,
    device: torch.device,
    dtype: torch.dtype,
    requires_grad: bool = False,
) -> Tensor:
    """Normal random inputs of the forward number ``i``."""
    x = torch.randn(shape, generator=seeded(seed, i, rank)).to(device, dtype)
    if requires_grad:
        x.requires_grad_()
    return x


def tokens(
    rows: int, shape: tuple[int, int], seed: int, i: int, rank: int, device: torch.device
) -> Tensor:
    """Random integers below ``rows`` for the forward number ``i``."""
    return torch.randint(rows, shape, generator=seeded(seed, i, rank)).to(device)

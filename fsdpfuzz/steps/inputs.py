"""What goes into the model: the same numbers for the same seed, forward and rank."""

from __future__ import annotations

import torch
from torch import Tensor

STRIDE = 8
"""Seeds between one forward's inputs and the next one's: one for each rank."""


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
    seeded = torch.Generator().manual_seed(seed + STRIDE * i + rank + 1)  # own inputs on each rank
    x = torch.randn(shape, generator=seeded).to(device, dtype)
    if requires_grad:
        x.requires_grad_()
    return x


def tokens(
    rows: int, shape: tuple[int, int], seed: int, i: int, rank: int, device: torch.device
) -> Tensor:
    """Random integers below ``rows`` for the forward number ``i``."""
    seeded = torch.Generator().manual_seed(seed + STRIDE * i + rank + 1)  # own inputs on each rank
    return torch.randint(rows, shape, generator=seeded).to(device)

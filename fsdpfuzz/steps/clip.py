"""The total norm that clipping gives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


def whole(norm: Any, lacking: bool) -> Tensor:
    """fsdp2's norm as a plain tensor, which it is already where gradients are ``lacking``."""
    if lacking and not isinstance(norm, DTensor):
        return norm
    # A DTensor with one partial norm for each rank; full_tensor() reduces them.
    return norm.full_tensor()


def known(norm: Any) -> Tensor | None:
    """What a clipping of your own gives as a plain tensor; None where that is no norm."""
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    if isinstance(norm, int | float):
        return torch.tensor(float(norm))
    return norm if isinstance(norm, Tensor) and norm.numel() == 1 else None

"""``model.to`` there and back again."""

from __future__ import annotations

import torch
from torch import nn


def through_float64(model: nn.Module, dtype: torch.dtype) -> None:
    """Casts all floating-point parameters, gradients and buffers, and casts them back."""
    model.to(torch.float64)
    model.to(dtype)


def through_cpu(model: nn.Module, device: torch.device) -> None:
    """Moves all parameters, gradients and buffers to the CPU, and back."""
    model.to("cpu")
    model.to(device)

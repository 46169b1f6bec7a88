"""``model.to`` there and back again."""

from __future__ import annotations

import torch
from torch import nn


# By keyword: a script leaves out a dtype or device that all has anyhow, but for these
# (``_Single`` in repro/trainings.py, ``_OnCpu`` in repro/tidy.py).
def through_float64(model: nn.Module, dtype: torch.dtype) -> None:
    """Casts all floating-point parameters, gradients and buffers, and casts them back."""
    model.to(dtype=torch.float64)
    model.to(dtype=dtype)


def through_cpu(model: nn.Module, device: torch.device) -> None:
    """Moves all parameters, gradients and buffers to the CPU, and back."""
    model.to(device="cpu")
    model.to(device=device)

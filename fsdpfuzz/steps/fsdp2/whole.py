"""Whole tensors, gathered from all ranks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


# full_tensor() is a collective: all ranks ask for the same names in the same order.
def value(model: nn.Module, named: Mapping[str, nn.Parameter], name: str) -> Tensor:
    """A parameter."""
    p = named[name].detach()
    return p.full_tensor() if isinstance(p, DTensor) else p


def gradient(model: nn.Module, named: Mapping[str, nn.Parameter], name: str) -> Tensor:
    """A parameter's gradient; zeros where it has none."""
    p = named[name]
    grad = torch.zeros_like(p) if p.grad is None else p.grad
    return grad.full_tensor() if isinstance(grad, DTensor) else grad


def values(model: nn.Module, named: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """All parameters."""
    return {name: value(model, named, name) for name in named}


def gradients(model: nn.Module, named: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """The gradients of all of them; zeros where one has none."""
    return {name: gradient(model, named, name) for name in named}

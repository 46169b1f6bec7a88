"""Backward."""

from __future__ import annotations

import torch
from torch import Tensor


def total(pending: list[Tensor]) -> Tensor:
    """The sum of the losses that wait."""
    return torch.stack(pending).sum()


# ``Tensor.backward`` raises for a loss that requires no grad, with FSDP or without.
def if_required(loss: Tensor, retain_graph: bool = False) -> None:
    """Backward, unless all that was used is frozen."""
    if loss.requires_grad:
        loss.backward(retain_graph=retain_graph)

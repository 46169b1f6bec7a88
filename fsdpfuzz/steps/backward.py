"""Backward."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.amp import GradScaler


def total(pending: list[Tensor]) -> Tensor:
    """The sum of the losses that wait."""
    return torch.stack(pending).sum()


def scale(pending: list[Tensor], scaler: GradScaler) -> None:
    """Scales the losses that wait."""
    pending[:] = [scaler.scale(loss) for loss in pending]


def each(pending: list[Tensor], sure: bool) -> None:
    """A backward of each loss that waits, of those that require grad unless all do for sure."""
    for loss in pending:
        if sure or loss.requires_grad:
            loss.backward()


# ``Tensor.backward`` raises for a loss that requires no grad, with FSDP or without.
def if_required(loss: Tensor, retain_graph: bool = False) -> None:
    """Backward, unless all that was used is frozen."""
    if loss.requires_grad:
        loss.backward(retain_graph=retain_graph)

"""Learning rates that change in the course of a training."""

from __future__ import annotations

from torch.optim import Optimizer


def multiply(optimizer: Optimizer, factor: float) -> None:
    """The rate of each group, as a scheduler does."""
    for group in optimizer.param_groups:
        group["lr"] *= factor

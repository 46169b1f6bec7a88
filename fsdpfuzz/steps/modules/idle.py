"""Parameters that no forward uses."""

from __future__ import annotations

from torch import Tensor, nn


class Idle(nn.Module):
    """Holds a linear layer and never calls it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.idle = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` itself."""
        return x

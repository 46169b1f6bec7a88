"""A module that changes in place what another one has put out."""

from __future__ import annotations

from torch import Tensor, nn

from fsdpfuzz.steps.checkpointing import call


class Viewed(nn.Module):
    """Puts out a view of what its body does."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape of ``x``."""
        y = call(self.body, x)
        return y.view_as(y)


class InPlace(nn.Module):
    """Scales in place what another module puts out."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape of ``x``."""
        return call(self.inner, x).mul_(0.75)

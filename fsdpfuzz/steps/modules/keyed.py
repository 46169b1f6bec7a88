"""A module that is called with a keyword argument."""

from __future__ import annotations

from torch import Tensor, nn

from fsdpfuzz.steps.checkpointing import call


class ByKeyword(nn.Module):
    """Adds ``residual``, if there is any, to the body's output."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Keeps the shape of ``x``."""
        y = call(self.body, x)
        return y if residual is None else y + residual


class Keyed(nn.Module):
    """Names the input of the inner module; or what it is to add to its output."""

    def __init__(self, inner: nn.Module, residual: bool = False) -> None:
        super().__init__()
        self.inner = inner
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape of ``x``."""
        return call(self.inner, x, residual=x) if self.residual else call(self.inner, x=x)

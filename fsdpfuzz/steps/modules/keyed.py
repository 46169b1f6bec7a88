"""A module that is called with a keyword argument."""

from __future__ import annotations

from torch import Tensor, nn

from fsdpfuzz.steps.checkpointing import call


class ByKeyword(nn.Module):
    """A body, to whose output it adds what it may be given besides."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """Keeps the shape of ``x``."""
        y = call(self.body, x)
        return y if added is None else y + added


class Keyed(nn.Module):
    """Names the input of the inner module; or what it is to add to its output."""

    def __init__(self, inner: nn.Module, added: bool = False) -> None:
        super().__init__()
        self.inner = inner
        self.added = added

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape of ``x``."""
        return call(self.inner, x, added=x) if self.added else call(self.inner, x=x)

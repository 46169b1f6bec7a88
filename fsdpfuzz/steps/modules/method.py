"""A module that is called by another method than ``forward``."""

from __future__ import annotations

from torch import Tensor, nn

from fsdpfuzz.steps.checkpointing import call


class ByMethod(nn.Module):
    """Runs its body in ``encode``, and has no forward."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def encode(self, x: Tensor) -> Tensor:
        """What the body puts out."""
        return call(self.body, x)


class Method(nn.Module):
    """Calls ``encode`` of the inner module, however it is called itself."""

    def __init__(self, inner: ByMethod) -> None:
        super().__init__()
        self.inner = inner

    def encode(self, x: Tensor) -> Tensor:
        """What the inner module puts out."""
        return self.inner.encode(x)

    def forward(self, x: Tensor) -> Tensor:
        """The same."""
        return self.inner.encode(x)

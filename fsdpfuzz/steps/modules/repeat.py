"""A module that is called several times."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fsdpfuzz.steps.checkpointing import call


class Repeat(nn.Module):
    """Calls the same module several times."""

    def __init__(self, body: nn.Module, times: int) -> None:
        super().__init__()
        self.body = body
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape of ``x``."""
        for _ in range(self.times):
            x = call(self.body, x)
        return x


class RepeatAside(Repeat):
    """Calls the module, or a part of it, under ``no_grad`` each time as well."""

    def __init__(self, body: nn.Module, times: int, part: str) -> None:
        super().__init__(body, times)
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape of ``x``."""
        for _ in range(self.times):
            x = call(self.body, x)
            # Looked up each time: FSDP may have put a wrapper in its place.
            again = self.body.get_submodule(self.part)
            with torch.no_grad():
                extra = again(x)
            # Detached, or what returns its input would go back here, too, unless FSDP casts it.
            x = x + extra.detach()
        return x

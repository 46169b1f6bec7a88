"""A module that runs one of several paths."""

from __future__ import annotations

from torch import Tensor, nn

from fsdpfuzz.steps.checkpointing import call


class Switch(nn.Module):
    """Runs one of its branches; ``active`` says which."""

    def __init__(self, branches: list[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        # No buffer: it is no part of the state, and differs between ranks.
        self.active = 0

    def forward(self, x: Tensor) -> Tensor:
        """The active branch's output."""
        return call(self.branches[self.active], x)

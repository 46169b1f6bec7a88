"""A linear layer with a low-rank adapter."""

from __future__ import annotations

from torch import Tensor, nn

from fsdpfuzz.steps.checkpointing import call


class Lora(nn.Module):
    """A linear layer with a low-rank adapter beside it."""

    def __init__(self, width: int, out: int, rank: int, bias: bool = True) -> None:
        super().__init__()
        self.base = nn.Linear(width, out, bias=bias)
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Last dimension ``width`` in, ``out`` out."""
        return call(self.base, x) + call(self.up, call(self.down, x))

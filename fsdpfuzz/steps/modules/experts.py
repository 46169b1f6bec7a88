"""Experts beside a router."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fsdpfuzz.steps.checkpointing import call
from fsdpfuzz.steps.randomness import APART


class Experts(nn.Module):
    """Hands each row to ``top`` of its experts, and adds up what they make of it by its gates."""

    def __init__(self, width: int, experts: list[nn.Module], top: int = 1, start: int = 0) -> None:
        super().__init__()
        self.router = nn.Linear(width, len(experts), bias=False)
        self.experts = nn.ModuleList(experts)
        self.top, self.start = top, start

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape of ``x``."""
        gates = call(self.router, x).softmax(dim=-1).flatten(0, -2)
        rows = x.flatten(0, -2)
        # Not by the largest gate: where two are close, rounding would choose. The seed is the
        # number of the forward and of the rank, and a recomputation restores it.
        batch, number = divmod(torch.initial_seed(), APART)
        row = torch.arange(len(rows), device=x.device).repeat_interleave(self.top)
        choice = torch.arange(len(row), device=x.device) % self.top
        chosen = (self.start + number + batch + row // 2 + choice) % len(self.experts)
        # Each is called, with no rows too: it may be a unit, which all ranks gather.
        outputs = [call(expert, rows[row[chosen == i]]) for i, expert in enumerate(self.experts)]
        # Back from the order of the experts to that of the rows.
        joined = torch.cat(outputs)[chosen.argsort(stable=True).argsort()]
        weighted = gates[row, chosen].unsqueeze(-1) * joined
        return weighted.unflatten(0, (len(rows), self.top)).sum(dim=1).view(x.shape)

"""Several modules beside each other."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fsdpfuzz.steps.checkpointing import call


class Branches(nn.Module):
    """Every branch gets the same input; the outputs are joined or added."""

    def __init__(self, branches: list[nn.Module], merge: str) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.merge = merge

    def forward(self, x: Tensor) -> Tensor:
        """Joins the last dimension (concat), the first (stack), or adds (sum)."""
        outputs = [call(branch, x) for branch in self.branches]
        if self.merge == "sum":
            return torch.stack(outputs).sum(dim=0)
        return torch.cat(outputs, dim=-1 if self.merge == "concat" else 0)


class Sided(nn.Module):
    """Takes a second input and never looks at it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, side: Tensor) -> Tensor:
        """``inner(x)``."""
        return call(self.inner, x)


class SidedBranches(Branches):
    """Branches that get a second, unused input, which ends up beside their outputs."""

    def forward(self, x: Tensor) -> Tensor:
        """As `Branches`; a stack also holds the second input."""
        side = x
        outputs = [call(branch, x, side) for branch in self.branches]
        if self.merge == "sum":
            return torch.stack(outputs).sum(dim=0)
        if self.merge == "concat":
            return torch.cat(outputs, dim=-1)
        return torch.cat([*outputs, side])

"""A module whose state dict holds what is neither a parameter nor a buffer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class ExtraState(nn.Module):
    """Multiplies by a number that it saves by ``get_extra_state``; may count forwards in it."""

    def __init__(self, as_dict: bool = False, counts: bool = False) -> None:
        super().__init__()
        self.as_dict = as_dict
        self.counts = counts
        self.quarters = 3
        self.calls = 0

    def get_extra_state(self) -> Any:
        """A tensor of both numbers, or a dict in which one of them is a tensor."""
        if self.as_dict:
            return {"quarters": torch.tensor(self.quarters), "calls": self.calls}
        return torch.tensor([self.quarters, self.calls])

    def set_extra_state(self, state: Any) -> None:
        """Takes what `get_extra_state` gave."""
        if self.as_dict:
            self.quarters, self.calls = int(state["quarters"]), state["calls"]
        else:
            self.quarters, self.calls = state.tolist()

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape of ``x``; in eval mode the number of forwards counts as well."""
        quarters = self.quarters
        if self.counts and self.training:
            self.calls += 1
        elif self.counts:
            quarters += self.calls % 4
        return x * (quarters / 4)

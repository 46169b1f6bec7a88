"""A module that returns several tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fsdpfuzz.steps.checkpointing import call


@dataclass
class Two:
    """Two tensors."""

    means: Tensor
    output: Tensor


class Several(nn.Module):
    """Returns the means of the body's output, and that output."""

    def __init__(self, body: nn.Module, form: str) -> None:
        super().__init__()
        self.body = body
        self.form = form

    def forward(self, x: Tensor) -> Any:
        """The two, the means first."""
        y = call(self.body, x)
        means = y.mean(dim=-1, keepdim=True)
        if self.form == "dict":
            return {"means": means, "output": y}
        if self.form == "dataclass":
            return Two(means, y)
        return means, y


class Outputs(nn.Module):
    """Makes one tensor of what the inner module returns: the second, or the sum of both."""

    def __init__(self, inner: nn.Module, returned: str, both: bool = False) -> None:
        super().__init__()
        self.inner = inner
        self.returned = returned
        self.both = both

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape of ``x``."""
        found: Any = call(self.inner, x)
        if self.returned == "dataclass":
            means, output = found.means, found.output
        elif self.returned == "dict":
            means, output = found["means"], found["output"]
        else:
            means, output = found
        return output + means if self.both else output

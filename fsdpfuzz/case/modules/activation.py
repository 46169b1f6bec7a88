"""Functions without parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from fsdpfuzz.case.modules.base import Build, Leaf, changed, takes_features
from fsdpfuzz.case.recipe import Value, call

if TYPE_CHECKING:
    from fsdpfuzz.case.modules import Node

ActivationName = Literal["gelu", "silu", "tanh", "softplus", "relu"]

_CLASSES: dict[ActivationName, str] = {
    "gelu": "GELU",
    "silu": "SiLU",
    "tanh": "Tanh",
    "softplus": "Softplus",
    "relu": "ReLU",
}


class Activation(Leaf, tag="activation", frozen=True, kw_only=True):
    """A function without parameters; keeps the width."""

    takes_rows: ClassVar[bool] = True
    fn: ActivationName = "gelu"

    def width_after(self, width: int, at: str = "$.model") -> int:
        """Keeps the width."""
        return takes_features(self, width, at)

    def takes(self) -> str:
        """As PyTorch's own modules call it."""
        return "input"

    def module(self, width: int, build: Build) -> Value:
        """PyTorch's own."""
        return call(f"torch.nn.{_CLASSES[self.fn]}")

    def words(self) -> list[str]:
        """The function's name."""
        return [self.fn]

    def simpler(self) -> Iterator[Node]:
        """GELU."""
        if self.fn != "gelu":
            yield changed(self, fn="gelu")

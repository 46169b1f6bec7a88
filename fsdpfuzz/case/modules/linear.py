"""``nn.Linear``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import Width
from fsdpfuzz.case.modules.base import (
    Brought,
    Build,
    Leaf,
    Shape,
    changed,
    takes_features,
    without_defaults,
)
from fsdpfuzz.case.recipe import Value, call

if TYPE_CHECKING:
    from fsdpfuzz.case.modules import Node


class Linear(Leaf, tag="linear", frozen=True, kw_only=True):
    """``nn.Linear(width, out, bias=bias)``."""

    classes: ClassVar[tuple[str, ...]] = ("torch.nn.Linear",)
    shows_width: ClassVar[bool] = True
    linears: ClassVar[tuple[str, ...]] = ("",)
    # It multiplies by the transpose: what it takes lies along the second.
    cut_by_rows: ClassVar[int | None] = 1
    out: Width
    bias: bool = True

    def width_after(self, width: int, at: str = "$.model") -> int:
        """``out``."""
        takes_features(self, width, at)
        return self.out

    def own_parameters(self, width: int) -> Iterator[tuple[str, Shape]]:
        """A weight of shape ``(out, width)``, and a bias if asked for."""
        yield "weight", (self.out, width)
        if self.bias:
            yield "bias", (self.out,)

    def changeable(self) -> bool:
        """Its backward needs its input and its weight."""
        return True

    # ``at::linear`` flattens such an input where there is a bias to add, and puts out a view of the
    # product.
    def puts_out_view(self, deep: bool) -> bool:
        """If it adds a bias to what has more than two dimensions."""
        return deep and self.bias

    def takes(self) -> str:
        """As PyTorch's own modules call it."""
        return "input"

    def module(self, width: int, build: Build) -> Value:
        """PyTorch's own."""
        return call("torch.nn.Linear", width, self.out, **without_defaults(self, bias="bias"))

    def simpler(self) -> Iterator[Node]:
        """Without the bias."""
        if self.bias:
            yield changed(self, bias=False)


def linear_in(name: str, width: int, out: int, *, bias: bool = True, used: bool = True) -> Brought:
    """``nn.Linear(width, out, bias=bias)`` that another module brings along."""
    shapes = tuple(Linear(out=out, bias=bias).own_parameters(width))
    return Brought(name, Linear.kind(), width, out, shapes, used=used)

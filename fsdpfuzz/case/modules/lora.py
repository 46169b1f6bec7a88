"""A linear layer with a low-rank adapter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import Count, Width
from fsdpfuzz.case.modules.base import (
    Brought,
    Build,
    Child,
    NodeBase,
    changed,
    takes_features,
    without_defaults,
)
from fsdpfuzz.case.modules.linear import Linear, linear_in
from fsdpfuzz.case.modules.walk import Visit, Walk
from fsdpfuzz.case.recipe import Value, call

if TYPE_CHECKING:
    from fsdpfuzz.case.modules import Node


class Lora(NodeBase, tag="lora", frozen=True, kw_only=True):
    """A linear layer with a low-rank adapter beside it: ``base(x) + up(down(x))``."""

    classes: ClassVar[tuple[str, ...]] = ("steps.modules.lora.Lora",)
    shows_width: ClassVar[bool] = True
    linears: ClassVar[tuple[str, ...]] = ("base",)
    out: Width
    rank: Count = 1
    bias: bool = True

    def width_after(self, width: int, at: str = "$.model") -> int:
        """``out``."""
        takes_features(self, width, at)
        return self.out

    def inside(self, width: int, at: str) -> Iterator[Child | Brought]:
        """Three linear layers."""
        yield linear_in("base", width, self.out, bias=self.bias)
        yield linear_in("down", width, self.rank, bias=False)
        yield linear_in("up", self.rank, self.out, bias=False)

    def visit(self, walk: Walk, path: str, x: bool, grad: bool) -> Visit:
        """The layer, then the adapter."""
        base = yield from walk.plain(path, ("base",), x, grad=grad)
        return base | (yield from walk.plain(path, ("down", "up"), x, grad=grad))

    def module(self, width: int, build: Build) -> Value:
        """A module of ours."""
        options = without_defaults(self, bias="bias")
        return call("steps.modules.lora.Lora", width, self.out, self.rank, **options)

    def words(self) -> list[str]:
        """``rank 2``."""
        return [f"rank {self.rank}"]

    def simpler(self) -> Iterator[Node]:
        """A linear layer; rank 1; without the bias."""
        yield Linear(out=self.out, bias=self.bias)
        if self.rank > 1:
            yield changed(self, rank=1)
        if self.bias:
            yield changed(self, bias=False)

"""A linear layer whose weight lies in memory by columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import Width
from fsdpfuzz.case.modules.base import Build, Leaf, Shape, changed, takes_features, without_defaults
from fsdpfuzz.case.recipe import Value, call
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.modules import Node


class Transposed(Leaf, tag="transposed", frozen=True, kw_only=True):
    """A linear layer, with a weight that is the transpose of another tensor: not contiguous."""

    classes: ClassVar[tuple[str, ...]] = ("steps.modules.transposed.Transposed",)
    shows_width: ClassVar[bool] = True
    out: Width
    bias: bool = True

    def width_after(self, width: int, at: str = "$.model") -> int:
        """``out``."""
        takes_features(self, width, at)
        if 1 in (width, self.out):
            raise CaseError("of one row or column the transpose is contiguous", path=at)
        return self.out

    def own_parameters(self, width: int) -> Iterator[tuple[str, Shape]]:
        """A weight of shape ``(out, width)``, and a bias if asked for."""
        yield "weight", (self.out, width)
        if self.bias:
            yield "bias", (self.out,)

    def module(self, width: int, build: Build) -> Value:
        """A module of ours."""
        options = without_defaults(self, bias="bias")
        return call("steps.modules.transposed.Transposed", width, self.out, **options)

    def simpler(self) -> Iterator[Node]:
        """Without the bias."""
        if self.bias:
            yield changed(self, bias=False)

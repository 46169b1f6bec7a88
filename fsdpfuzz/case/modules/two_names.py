"""A layer that stands in its module under two names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.modules.base import Build, Leaf, Shape, changed, takes_features, without_defaults
from fsdpfuzz.case.modules.linear import linear_in
from fsdpfuzz.case.recipe import Value, call

if TYPE_CHECKING:
    from fsdpfuzz.case.modules import Node


# FSDP1 would put its wrapper in the place of the first name alone, and a call by the second one go
# past it.
class TwoNames(Leaf, tag="two_names", frozen=True, kw_only=True):
    """One linear layer, which is an attribute twice, and is called by both names.

    As the embedding of T5, which its encoder and its decoder hold, too. The layer itself is no
    place for a unit or a checkpoint.
    """

    classes: ClassVar[tuple[str, ...]] = ("steps.modules.two_names.TwoNames",)
    inner_kinds: ClassVar[tuple[str, ...]] = (linear_in("layer", 1, 1).kind,)
    bias: bool = True

    def width_after(self, width: int, at: str = "$.model") -> int:
        """Keeps the width."""
        return takes_features(self, width, at)

    def own_parameters(self, width: int) -> Iterator[tuple[str, Shape]]:
        """Those of the layer, by its first name."""
        for name, shape in linear_in("layer", width, width, bias=self.bias).parameters:
            yield f"layer.{name}", shape

    def own_ties(self) -> Iterator[tuple[str, str]]:
        """Each has a second one."""
        for name, _ in linear_in("layer", 1, 1, bias=self.bias).parameters:
            yield f"layer.{name}", f"again.{name}"

    def module(self, width: int, build: Build) -> Value:
        """A module of ours."""
        options = without_defaults(self, bias="bias")
        return call("steps.modules.two_names.TwoNames", width, **options)

    def simpler(self) -> Iterator[Node]:
        """Without the bias."""
        if self.bias:
            yield changed(self, bias=False)

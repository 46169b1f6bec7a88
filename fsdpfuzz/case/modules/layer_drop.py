"""Layers of which each forward leaves one out, in turn: LayerDrop, or stochastic depth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from fsdpfuzz.case.modules.base import (
    Brought,
    Build,
    Child,
    NodeBase,
    changed,
    kept_rows,
    kept_width,
    takes_features,
    without_defaults,
)
from fsdpfuzz.case.modules.walk import Visit, Walk
from fsdpfuzz.case.paths import join
from fsdpfuzz.case.recipe import Items, Value, call

if TYPE_CHECKING:
    from fsdpfuzz.case.modules import Node

MOST = 4
_LEFT_OUT = "what may be left out"


class LayerDrop(NodeBase, tag="layer_drop", frozen=True, kw_only=True):
    """Calls its children one after the other, in train mode without one: the same on all ranks.

    Counted from ``start``, the first forward calls all, the next ones leave out the first child,
    the second, and so on, and after the last one begin again.
    """

    classes: ClassVar[tuple[str, ...]] = ("steps.modules.layer_drop.LayerDrop",)
    chooses_from: ClassVar[str] = "layers"
    numbered: ClassVar[bool] = True
    # Of one alone nothing would be left.
    children: Annotated[tuple[Node, ...], Meta(min_length=2, max_length=MOST)]
    start: Annotated[int, Meta(ge=0, le=MOST)] = 0

    def width_after(self, width: int, at: str = "$.model") -> int:
        """Keeps the width, as each child does."""
        takes_features(self, width, at)
        for i, child in enumerate(self.children):
            here = f"{at}.children[{i}]"
            kept_width(child, width, at=here, says=_LEFT_OUT, path=here)
        return width

    def rows_after(self, at: str = "$.model") -> int:
        """Keeps the batch."""
        for i, child in enumerate(self.children):
            here = f"{at}.children[{i}]"
            kept_rows(child, at=here, says=_LEFT_OUT, path=here)
        return 1

    def inside(self, width: int, at: str) -> Iterator[Child | Brought]:
        """The children."""
        for i, child in enumerate(self.children):
            yield Child(f"layers.{i}", child, width, f"{at}.children[{i}]")

    def visit(self, walk: Walk, path: str, x: bool, grad: bool) -> Visit:
        """All but one, in order."""
        left_out = (walk.now.forwards + self.start) % (len(self.children) + 1) - 1
        for i, child in enumerate(self.children):
            if i != left_out or not walk.now.training:
                x = yield from walk.visit(child, join(path, "layers", str(i)), x, grad=grad)
        return x

    def passed_on(self) -> Iterator[str]:
        """Each child, as the others behind it may be left out."""
        yield from (f"layers.{i}" for i in range(len(self.children)))

    def returns_its_input(self) -> bool:
        """If all but one of the children do, which may be the one that is left out."""
        return sum(not child.returns_its_input() for child in self.children) <= 1

    def module(self, width: int, build: Build) -> Value:
        """A module of ours."""
        children = (
            build(Child(f"layers.{i}", child, width)) for i, child in enumerate(self.children)
        )
        items, options = Items("list", tuple(children)), without_defaults(self, start="start")
        return call("steps.modules.layer_drop.LayerDrop", items, **options)

    def words(self) -> list[str]:
        """``from 1``."""
        return [f"from {self.start}"] if self.start else []

    def simpler(self) -> Iterator[Node]:
        """From the start."""
        if self.start:
            yield changed(self, start=0)

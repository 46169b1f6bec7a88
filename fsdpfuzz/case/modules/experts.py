"""Experts beside a router: a mixture, in which each row of the data goes to some of them."""

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
from fsdpfuzz.case.modules.linear import linear_in
from fsdpfuzz.case.modules.walk import Visit, Walk
from fsdpfuzz.case.paths import join
from fsdpfuzz.case.recipe import Items, Value, call
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.modules import Node

MOST = 4
_EXPERT = "an expert"


# An expert without rows is called all the same, with none: who leaves it out on some ranks has
# these issue other collectives than the rest where it is a unit, and gradients of other sizes
# reduced where it is a part of one (pytorch issue 158719). For that there are `Switch` and `Flip`.
class Experts(NodeBase, tag="experts", frozen=True, kw_only=True):
    """Hands each row to ``top`` of its children, and adds up what they make of it by its gates.

    All ranks call each child, with as many rows as go there: perhaps none, and others on each rank
    and in each forward. The gates are what the router computes, and train it. Where a row goes, it
    does not say: rounding would send it elsewhere. That follows from the row's number, the rank's
    and the forward's, and begins at ``start``.
    """

    classes: ClassVar[tuple[str, ...]] = ("steps.modules.experts.Experts",)
    calls_all: ClassVar[bool] = True
    hands_out_rows: ClassVar[bool] = True
    children: Annotated[tuple[Node, ...], Meta(min_length=2, max_length=MOST)]
    top: Annotated[int, Meta(ge=1, le=2)] = 1
    start: Annotated[int, Meta(ge=0, lt=MOST)] = 0

    def width_after(self, width: int, at: str = "$.model") -> int:
        """Keeps the width, as each child does."""
        takes_features(self, width, at)
        for i, child in enumerate(self.children):
            here = f"{at}.children[{i}]"
            kept_width(child, width, at=here, says=_EXPERT, path=here)
            _takes_single_rows(child, width, here)
        return width

    def rows_after(self, at: str = "$.model") -> int:
        """Keeps the batch."""
        for i, child in enumerate(self.children):
            here = f"{at}.children[{i}]"
            kept_rows(child, at=here, says=_EXPERT, path=here)
        return 1

    def inside(self, width: int, at: str) -> Iterator[Child | Brought]:
        """The router and the children."""
        yield linear_in("router", width, len(self.children), bias=False)
        for i, child in enumerate(self.children):
            yield Child(f"experts.{i}", child, width, f"{at}.children[{i}]")

    def visit(self, walk: Walk, path: str, x: bool, grad: bool) -> Visit:
        """The router, then the children in order."""
        out = yield from walk.plain(path, ("router",), x, grad=grad)
        for i, child in enumerate(self.children):
            out |= yield from walk.visit(child, join(path, "experts", str(i)), x, grad=grad)
        return out

    def may_lack_rows(self, rows: int) -> bool:
        """Whether an expert gets none of so many rows."""
        # Two neighbours begin at the same expert (steps/modules/experts.py).
        return -(-rows // 2) + self.top - 1 < len(self.children)

    def module(self, width: int, build: Build) -> Value:
        """A module of ours."""
        children = (
            build(Child(f"experts.{i}", child, width)) for i, child in enumerate(self.children)
        )
        items, options = Items("list", tuple(children)), without_defaults(self, top="top")
        options |= without_defaults(self, start="start")
        return call("steps.modules.experts.Experts", width, items, **options)

    def words(self) -> list[str]:
        """``2 of 3``, ``from 1``."""
        words = [f"{self.top} of {len(self.children)}"]
        return [*words, f"from {self.start}"] if self.start else words

    def simpler(self) -> Iterator[Node]:
        """One expert a row; from the start."""
        if self.top > 1:
            yield changed(self, top=1)
        if self.start:
            yield changed(self, start=0)


def _takes_single_rows(node: Node, width: int, at: str) -> None:
    """:class:`CaseError` where a module in an expert takes several rows together."""
    if node.joins_rows:
        text = f"{node.kind()} takes rows together, and an expert is given any number, none too"
        raise CaseError(text, path=at)
    for inner in node.inside(width, at):
        child = inner if isinstance(inner, Child) else inner.child
        if child is not None:
            _takes_single_rows(child.node, child.width, child.at)

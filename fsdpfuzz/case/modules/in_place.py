"""A module that changes in place what another one has put out."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.modules.base import Around, Brought, Build, Child, changed
from fsdpfuzz.case.modules.walk import Called, Visit, Walk
from fsdpfuzz.case.paths import join, within
from fsdpfuzz.case.recipe import Value, call
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.modules import Node

VIEWED = "viewed"
"""The kind of the module that puts out a view of what its body does."""


class InPlace(Around, tag="in_place", frozen=True, kw_only=True):
    """Scales in place what the body puts out.

    With ``view`` that is a view: the body lies in a module that returns ``y.view_as(y)``.
    """

    classes: ClassVar[tuple[str, ...]] = ("steps.modules.in_place.InPlace",)
    changes_outputs: ClassVar[bool] = True
    body: Node
    view: bool = False

    def width_after(self, width: int, at: str = "$.model") -> int:
        """Keeps the width; nothing else must need what is changed."""
        out = Around.width_after(self, width, at)
        *_, (_, last) = _putting_out(self.body, "")
        if not last.changeable():
            text = "only what a linear layer puts out may be changed in place here"
            raise CaseError(text, path=f"{at}.body")
        return out

    def inside(self, width: int, at: str) -> Iterator[Child | Brought]:
        """The body, in another module if it puts out a view."""
        body = Child("body" if self.view else "inner", self.body, width, f"{at}.body")
        yield Brought("inner", VIEWED, width, width, child=body, takes="x") if self.view else body

    def visit(self, walk: Walk, path: str, x: bool, grad: bool) -> Visit:
        """The body, or the module around it."""
        inner = join(path, "inner")
        if not self.view:
            return (yield from walk.visit(self.body, inner, x, grad=grad))
        yield Called(inner, grad, x, asked=True)
        return (yield from walk.visit(self.body, join(inner, "body"), x, grad=grad))

    def module(self, width: int, build: Build) -> Value:
        """A module of ours."""
        inner = build(Child("inner.body" if self.view else "inner", self.body, width))
        if self.view:
            inner = call("steps.modules.in_place.Viewed", inner)
        return call("steps.modules.in_place.InPlace", inner)

    def views(self, deep: bool) -> Iterator[str]:
        """FQNs in it of the modules that put out a view which it changes.

        ``deep`` says that its input has more than two dimensions.
        """
        if self.view:
            yield "inner"
        chain = list(_putting_out(self.body, "inner.body" if self.view else "inner"))
        _, last = chain[-1]
        if last.puts_out_view(deep):
            yield from (path for path, _ in chain)

    def words(self) -> list[str]:
        """``of a view``."""
        return ["of a view"] if self.view else []

    def simpler(self) -> Iterator[Node]:
        """Of what the body puts out itself."""
        if self.view:
            yield changed(self, view=False)


def _putting_out(node: Node, path: str) -> Iterator[tuple[str, Node]]:
    """A module, and the last one in it, and so on: all put out the same tensor."""
    yield path, node
    if found := node.last():
        name, inner = found
        yield from _putting_out(inner, join(path, name))


@lru_cache(maxsize=64)
def changed_views(a: Anatomy) -> frozenset[str]:
    """Modules that put out a view which another one changes in place, by path."""
    deep = a.case.inputs.length is not None
    flat = [p.path for p in a.places if p.node is not None and p.node.hands_out_rows]
    return frozenset(
        join(place.path, inner)
        for place in a.places
        if isinstance(place.node, InPlace)
        for inner in place.node.views(deep and not any(within(place.path, path) for path in flat))
    )

"""A module that keeps a part of the loss beside its output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from fsdpfuzz.case.modules.base import Around, Brought, Build, Child, changed, without_defaults
from fsdpfuzz.case.modules.linear import linear_in
from fsdpfuzz.case.modules.walk import Visit, Walk
from fsdpfuzz.case.paths import join
from fsdpfuzz.case.recipe import Value, call

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.modules import Node

LAYER = "layer"
"""Name of the linear layer in it."""


class SideOutput(Around, tag="side_output", frozen=True, kw_only=True):
    """Returns the body's output and keeps a mean square, which the loss takes in as well.

    That is of the output, or of what a linear layer gives on it, or on the input, as a router
    keeps the balance of its experts. The layer's gradient then comes from no module's output.
    """

    classes: ClassVar[tuple[str, ...]] = ("steps.modules.side_output.SideOutput",)
    joins_rows: ClassVar[bool] = True
    body: Node
    on: Literal["no", "input", "output"] = "no"
    """What the linear layer is on."""

    def inside(self, width: int, at: str) -> Iterator[Child | Brought]:
        """The body, then the linear layer."""
        yield Child("body", self.body, width, f"{at}.body")
        if self.on != "no":
            yield linear_in(LAYER, width, 1, bias=False)

    def visit(self, walk: Walk, path: str, x: bool, grad: bool) -> Visit:
        """Both, of which the body alone has part in what is returned."""
        if self.on == "input":
            yield from walk.plain(path, (LAYER,), x, grad=grad)
        out = yield from walk.visit(self.body, join(path, "body"), x, grad=grad)
        if self.on == "output":
            yield from walk.plain(path, (LAYER,), out, grad=grad)
        return out

    def returns_its_input(self) -> bool:
        """If the body does."""
        return self.body.returns_its_input()

    def last(self) -> tuple[str, Node] | None:
        """The body."""
        return "body", self.body

    def module(self, width: int, build: Build) -> Value:
        """A module of ours."""
        body = build(Child("body", self.body, width))
        options = without_defaults(self, on="on")
        return call("steps.modules.side_output.SideOutput", body, width, **options)

    def words(self) -> list[str]:
        """``layer on output``."""
        return [] if self.on == "no" else [f"layer on {self.on}"]

    def simpler(self) -> Iterator[Node]:
        """Of the output itself."""
        if self.on != "no":
            yield changed(self, on="no")


def beside(a: Anatomy) -> frozenset[str]:
    """FQNs of the layers whose outputs go to the loss past all that is around them."""
    kept = (p for p in a.places if isinstance(p.node, SideOutput) and p.node.on != "no")
    return frozenset(join(place.path, LAYER) for place in kept)


def keeping(a: Anatomy) -> list[str]:
    """FQNs of the modules that keep a part of the loss."""
    return [place.path for place in a.places if isinstance(place.node, SideOutput)]

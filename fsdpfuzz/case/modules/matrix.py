"""A container with a parameter of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.modules.base import (
    Brought,
    Build,
    Child,
    NodeBase,
    Shape,
    changed,
    without_defaults,
)
from fsdpfuzz.case.modules.walk import Visit, Walk
from fsdpfuzz.case.paths import join
from fsdpfuzz.case.recipe import Value, call

if TYPE_CHECKING:
    from fsdpfuzz.case.modules import Node


class Matrix(NodeBase, tag="matrix", frozen=True, kw_only=True):
    """``body`` followed by a product with a ``(width, width)`` parameter of its own.

    With ``buffered`` a buffer of the same shape is held too (and added, so that it counts).
    """

    classes: ClassVar[tuple[str, ...]] = ("steps.modules.matrix.Matrix",)
    shows_width: ClassVar[bool] = True
    body: Node
    buffered: bool = False

    def width_after(self, width: int, at: str = "$.model") -> int:
        """What the body puts out."""
        return self.body.width_after(width, f"{at}.body")

    def rows_after(self, at: str = "$.model") -> int:
        """As the body."""
        return self.body.rows_after(f"{at}.body")

    def inside(self, width: int, at: str) -> Iterator[Child | Brought]:
        """The body."""
        yield Child("body", self.body, width, f"{at}.body")

    def own_parameters(self, width: int) -> Iterator[tuple[str, Shape]]:
        """The matrix."""
        out = self.body.width_after(width)
        yield "matrix", (out, out)

    def own_buffers(self) -> tuple[str, ...]:
        """What is added to the matrix, if anything."""
        return ("offset",) if self.buffered else ()

    def visit(self, walk: Walk, path: str, x: bool, grad: bool) -> Visit:
        """The body, then the product."""
        own = grad and walk.own(path)
        return own | (yield from walk.visit(self.body, join(path, "body"), x, grad=grad))

    def multiplies(self) -> bool:
        """By its matrix."""
        return True

    def module(self, width: int, build: Build) -> Value:
        """A module of ours."""
        out = self.body.width_after(width)
        body = build(Child("body", self.body, width))
        options = without_defaults(self, buffered="buffered")
        return call("steps.modules.matrix.Matrix", body, out, **options)

    def words(self) -> list[str]:
        """``with buffer``."""
        return ["with buffer"] if self.buffered else []

    def simpler(self) -> Iterator[Node]:
        """Without the buffer."""
        if self.buffered:
            yield changed(self, buffered=False)

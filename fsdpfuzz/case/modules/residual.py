"""A residual connection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.modules.base import Around, Brought, Build, Child
from fsdpfuzz.case.modules.walk import Visit, Walk
from fsdpfuzz.case.paths import join
from fsdpfuzz.case.recipe import Value, call

if TYPE_CHECKING:
    from fsdpfuzz.case.modules import Node


class Residual(Around, tag="residual", frozen=True, kw_only=True):
    """``x + body(x)``; the body keeps the width."""

    classes: ClassVar[tuple[str, ...]] = ("steps.modules.residual.Residual",)
    takes_rows: ClassVar[bool] = True
    body: Node

    def inside(self, width: int, at: str) -> Iterator[Child | Brought]:
        """The body."""
        yield Child("body", self.body, width, f"{at}.body")

    def visit(self, walk: Walk, path: str, x: bool, grad: bool) -> Visit:
        """The body."""
        return x | (yield from walk.visit(self.body, join(path, "body"), x, grad=grad))

    def saves(self) -> bool:
        """If the body does: of a sum the backward needs no terms."""
        return self.body.saves()

    def ends_with(self) -> Iterator[str]:
        """The body: of a sum the backward needs no terms."""
        yield "body"

    def module(self, width: int, build: Build) -> Value:
        """A module of ours."""
        return call("steps.modules.residual.Residual", build(Child("body", self.body, width)))

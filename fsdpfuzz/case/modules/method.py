"""A module that is called by another method than ``forward``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.modules.base import Brought, Build, Child, NodeBase
from fsdpfuzz.case.modules.walk import Called, Visit, Walk
from fsdpfuzz.case.paths import join
from fsdpfuzz.case.recipe import Value, call

if TYPE_CHECKING:
    from fsdpfuzz.case.modules import Node

METHOD = "encode"
"""The method."""
BY_METHOD = "by_method"
"""The kind of the module that is called so, and has no ``forward``."""


class Method(NodeBase, tag="method", frozen=True, kw_only=True):
    """Calls ``encode`` of a module that holds the body, and has an ``encode`` itself."""

    classes: ClassVar[tuple[str, ...]] = ("steps.modules.method.Method",)
    encodes: ClassVar[bool] = True
    body: Node

    def width_after(self, width: int, at: str = "$.model") -> int:
        """What the body puts out."""
        return self.body.width_after(width, f"{at}.body")

    def rows_after(self, at: str = "$.model") -> int:
        """As the body has it."""
        return self.body.rows_after(f"{at}.body")

    def inside(self, width: int, at: str) -> Iterator[Child | Brought]:
        """The module that is called so, and in it the body."""
        yield Brought(
            "inner",
            BY_METHOD,
            width,
            self.width_after(width, at),
            child=Child("body", self.body, width, f"{at}.body"),
            callable_alone=False,
            by_method=True,
            returns_its_input=self.returns_its_input(),
        )

    def visit(self, walk: Walk, path: str, x: bool, grad: bool) -> Visit:
        """The module, and in it the body."""
        inner = join(path, "inner")
        yield Called(inner, grad, x, asked=False)
        return (yield from walk.visit(self.body, join(inner, "body"), x, grad=grad))

    def passed_on(self) -> Iterator[str]:
        """The body."""
        yield "inner.body"

    def saves(self) -> bool:
        """If the body does."""
        return self.body.saves()

    def returns_its_input(self) -> bool:
        """If the body does."""
        return self.body.returns_its_input()

    def module(self, width: int, build: Build) -> Value:
        """A module of ours."""
        inner = call("steps.modules.method.ByMethod", build(Child("inner.body", self.body, width)))
        return call("steps.modules.method.Method", inner)

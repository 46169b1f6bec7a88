"""A module that is called with a keyword argument."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.modules.base import Around, Brought, Build, Child, changed, without_defaults
from fsdpfuzz.case.modules.walk import Called, Visit, Walk
from fsdpfuzz.case.paths import join
from fsdpfuzz.case.recipe import Value, call

if TYPE_CHECKING:
    from fsdpfuzz.case.modules import Node

BY_KEYWORD = "by_keyword"
"""The kind of the module that is called so."""


class Keyed(Around, tag="keyed", frozen=True, kw_only=True):
    """Calls a module that holds the body by keyword: ``inner(x=x)``.

    With ``added`` it is ``inner(x, added=x)``, which the module adds to the body's output.
    """

    classes: ClassVar[tuple[str, ...]] = ("steps.modules.keyed.Keyed",)
    body: Node
    added: bool = False

    def inside(self, width: int, at: str) -> Iterator[Child | Brought]:
        """The module that is called so, and in it the body."""
        body = Child("body", self.body, width, f"{at}.body")
        same = self.returns_its_input()
        yield Brought(
            "inner", BY_KEYWORD, width, width, child=body, returns_its_input=same, takes="x"
        )

    def visit(self, walk: Walk, path: str, x: bool, grad: bool) -> Visit:
        """The module, and in it the body."""
        inner = join(path, "inner")
        yield Called(inner, grad, x, asked=True)
        out = yield from walk.visit(self.body, join(inner, "body"), x, grad=grad)
        return out or (x and self.added)

    def named_alone(self) -> str:
        """The inner module, if nothing is added."""
        return "" if self.added else "inner"

    def passed_on(self) -> Iterator[str]:
        """The body, if nothing is added."""
        yield from () if self.added else ("inner.body",)

    def saves(self) -> bool:
        """If the body does."""
        return self.body.saves()

    def returns_its_input(self) -> bool:
        """If the body does, and nothing is added."""
        return not self.added and self.body.returns_its_input()

    def module(self, width: int, build: Build) -> Value:
        """A module of ours."""
        inner = call("steps.modules.keyed.ByKeyword", build(Child("inner.body", self.body, width)))
        options = without_defaults(self, added="added")
        return call("steps.modules.keyed.Keyed", inner, **options)

    def words(self) -> list[str]:
        """``added``."""
        return ["added"] if self.added else []

    def simpler(self) -> Iterator[Node]:
        """The input alone."""
        if self.added:
            yield changed(self, added=False)

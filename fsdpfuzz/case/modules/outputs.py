"""A module that returns several tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from fsdpfuzz.case.modules.base import Around, Brought, Build, Child, changed, without_defaults
from fsdpfuzz.case.modules.walk import Called, Visit, Walk
from fsdpfuzz.case.paths import join
from fsdpfuzz.case.recipe import Value, call

if TYPE_CHECKING:
    from fsdpfuzz.case.modules import Node

SEVERAL = "several"
"""The kind of the module that returns them."""


class Outputs(Around, tag="outputs", frozen=True, kw_only=True):
    """Calls a module that returns the means of the body's output and that output itself.

    ``form`` is what holds the two; ``both`` adds them, else the first goes nowhere, and no
    backward comes from it.
    """

    classes: ClassVar[tuple[str, ...]] = ("steps.modules.outputs.Outputs",)
    body: Node
    form: Literal["tuple", "dict", "dataclass"] = "tuple"
    both: bool = False

    def inside(self, width: int, at: str) -> Iterator[Child | Brought]:
        """The module that returns them, and in it the body."""
        body = Child("body", self.body, width, f"{at}.body")
        yield Brought(
            "inner",
            SEVERAL,
            width,
            width,
            child=body,
            callable_alone=False,
            returns_its_input=self.returns_its_input(),
        )

    def visit(self, walk: Walk, path: str, x: bool, grad: bool) -> Visit:
        """The module, and in it the body."""
        inner = join(path, "inner")
        yield Called(inner, grad, x, asked=True)
        return (yield from walk.visit(self.body, join(inner, "body"), x, grad=grad))

    def passed_on(self) -> Iterator[str]:
        """The body, if its output is what counts."""
        yield from () if self.both else ("inner.body",)

    def saves(self) -> bool:
        """If the body does."""
        return self.body.saves()

    def returns_its_input(self) -> bool:
        """If the body does, and its output is what counts."""
        return not self.both and self.body.returns_its_input()

    def module(self, width: int, build: Build) -> Value:
        """A module of ours."""
        body = build(Child("inner.body", self.body, width))
        inner = call("steps.modules.outputs.Several", body, self.form)
        options = without_defaults(self, both="both")
        return call("steps.modules.outputs.Outputs", inner, self.form, **options)

    def words(self) -> list[str]:
        """``dict``, ``both``."""
        return [self.form, "both"] if self.both else [self.form]

    def simpler(self) -> Iterator[Node]:
        """In a tuple; of which the second counts alone."""
        if self.form != "tuple":
            yield changed(self, form="tuple")
        if self.both:
            yield changed(self, both=False)

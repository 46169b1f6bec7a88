"""A module that is called several times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from msgspec import Meta

from fsdpfuzz.case.modules.base import Around, Brought, Build, Child, changed
from fsdpfuzz.case.modules.sequential import Sequential
from fsdpfuzz.case.modules.walk import Visit, Walk
from fsdpfuzz.case.paths import join
from fsdpfuzz.case.recipe import Value, call
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.modules import Node


class Repeat(Around, tag="repeat", frozen=True, kw_only=True):
    """Calls ``body`` ``times`` times in a row; the body keeps the width.

    ``no_grad`` adds, after each call, a second one under ``torch.no_grad()``: of the whole
    body, or of the body's first child, when that is a Sequential.
    """

    classes: ClassVar[tuple[str, ...]] = (
        "steps.modules.repeat.Repeat",
        "steps.modules.repeat.RepeatAside",
    )
    body: Node
    times: Annotated[int, Meta(ge=1, le=16)] = 2
    no_grad: Literal["off", "body", "first_child"] = "off"

    def repeats(self) -> bool:
        """It is for that."""
        return True

    def width_after(self, width: int, at: str = "$.model") -> int:
        """Keeps the width."""
        out = super().width_after(width, at)
        if self.no_grad == "first_child":
            if not isinstance(self.body, Sequential) or not self.body.children:
                raise CaseError(
                    "no_grad='first_child' needs a sequential body with children", path=at
                )
            first = self.body.children[0].width_after(width, f"{at}.body.children[0]")
            if first != width:
                raise CaseError(
                    f"no_grad='first_child' needs a first child that keeps the width {width}, "
                    f"but it puts out {first}",
                    path=at,
                )
        return out

    def inside(self, width: int, at: str) -> Iterator[Child | Brought]:
        """The body."""
        yield Child("body", self.body, width, f"{at}.body")

    def visit(self, walk: Walk, path: str, x: bool, grad: bool) -> Visit:
        """The body as often as asked, and what is called under ``no_grad`` after each time."""
        body = join(path, "body")
        for _ in range(self.times):
            x = yield from walk.visit(self.body, body, x, grad=grad)
            if self.no_grad == "body":
                # What comes out is added to ``x``, and requires no grad itself.
                yield from walk.visit(self.body, body, x, grad=False, asked=False)
            elif self.no_grad == "first_child" and isinstance(self.body, Sequential):
                first = self.body.children[0]
                yield from walk.visit(first, join(body, "0"), x, grad=False, asked=False)
        return x

    def passed_on(self) -> Iterator[str]:
        """The body, unless a call without grad adds to what it puts out."""
        yield from ("body",) if self.no_grad == "off" else ()

    def returns_its_input(self) -> bool:
        """If the body does, unless a call without grad gives its result back detached."""
        return self.no_grad == "off" and self.body.returns_its_input()

    def called_inside(self) -> str:
        """The first child of its body, if it calls that by itself."""
        return "body.0" if self.no_grad == "first_child" else ""

    def module(self, width: int, build: Build) -> Value:
        """A module of ours."""
        body = build(Child("body", self.body, width))
        if self.no_grad == "off":
            return call("steps.modules.repeat.Repeat", body, self.times)
        part = "" if self.no_grad == "body" else "0"
        return call("steps.modules.repeat.RepeatAside", body, self.times, part)

    def words(self) -> list[str]:
        """``3 times``, ``again under no_grad: body``."""
        words = [f"{self.times} times"]
        return words if self.no_grad == "off" else [*words, f"again under no_grad: {self.no_grad}"]

    def simpler(self) -> Iterator[Node]:
        """Fewer calls."""
        if self.no_grad != "off":
            yield changed(self, no_grad="off")
        if self.times > 2:
            yield changed(self, times=2)
        if self.times > 1:
            yield changed(self, times=self.times - 1)

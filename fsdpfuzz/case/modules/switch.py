"""A module that runs one of several paths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from fsdpfuzz.case.modules.base import Brought, Build, Child, NodeBase
from fsdpfuzz.case.modules.walk import Visit, Walk
from fsdpfuzz.case.paths import join
from fsdpfuzz.case.recipe import Items, Value, call
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.modules import Node


class Switch(NodeBase, tag="switch", frozen=True, kw_only=True):
    """Runs one of its children, the first until a `flip` operation picks the next one."""

    classes: ClassVar[tuple[str, ...]] = ("steps.modules.switch.Switch",)
    chooses_from: ClassVar[str] = "branches"
    children: Annotated[tuple[Node, ...], Meta(min_length=2, max_length=4)]

    def width_after(self, width: int, at: str = "$.model") -> int:
        """What all children put out."""
        outs = [
            child.width_after(width, f"{at}.children[{i}]") for i, child in enumerate(self.children)
        ]
        if len(set(outs)) > 1:
            raise CaseError(f"children put out different widths {outs}", path=at)
        return outs[0]

    def rows_after(self, at: str = "$.model") -> int:
        """What all children put out."""
        rows = [child.rows_after(f"{at}.children[{i}]") for i, child in enumerate(self.children)]
        if len(set(rows)) > 1:
            raise CaseError(f"children enlarge the batch differently: {rows}", path=at)
        return rows[0]

    def inside(self, width: int, at: str) -> Iterator[Child | Brought]:
        """The children."""
        for i, child in enumerate(self.children):
            yield Child(f"branches.{i}", child, width, f"{at}.children[{i}]")

    def visit(self, walk: Walk, path: str, x: bool, grad: bool) -> Visit:
        """The active child."""
        chosen = walk.now.active.get(path, 0)
        inner = join(path, "branches", str(chosen))
        return (yield from walk.visit(self.children[chosen], inner, x, grad=grad))

    def passed_on(self) -> Iterator[str]:
        """Each child."""
        yield from (f"branches.{i}" for i in range(len(self.children)))

    def returns_its_input(self) -> bool:
        """If a child does that may be the active one."""
        # Which one is active the program decides, and ranks may differ in it.
        return any(child.returns_its_input() for child in self.children)

    def module(self, width: int, build: Build) -> Value:
        """A module of ours."""
        children = (
            build(Child(f"branches.{i}", child, width)) for i, child in enumerate(self.children)
        )
        return call("steps.modules.switch.Switch", Items("list", tuple(children)))

    def words(self) -> list[str]:
        """``one of 2``."""
        return [f"one of {len(self.children)}"]

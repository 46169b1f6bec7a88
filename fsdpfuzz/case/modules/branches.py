"""Several modules beside each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from msgspec import Meta

from fsdpfuzz.case.modules.base import Brought, Build, Child, NodeBase, changed
from fsdpfuzz.case.modules.walk import Called, Visit, Walk
from fsdpfuzz.case.paths import join
from fsdpfuzz.case.recipe import Items, Value, call
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.modules import Node


class Branches(NodeBase, tag="branches", frozen=True, kw_only=True):
    """Every child gets the same input.

    ``merge``: ``concat`` joins the last dimension, ``sum`` adds (equal widths), ``stack``
    joins the batch dimension (equal widths). ``side`` hands every child a second input
    that it ignores; that input is joined to a ``stack``.
    """

    classes: ClassVar[tuple[str, ...]] = (
        "steps.modules.branches.Branches",
        "steps.modules.branches.SidedBranches",
    )
    calls_all: ClassVar[bool] = True
    children: Annotated[tuple[Node, ...], Meta(min_length=1, max_length=16)]
    merge: Literal["concat", "sum", "stack"] = "concat"
    side: bool = False

    def width_after(self, width: int, at: str = "$.model") -> int:
        """The sum of the children's for ``concat``, else what all of them put out."""
        outs = [
            child.width_after(width, f"{at}.children[{i}]") for i, child in enumerate(self.children)
        ]
        if self.merge == "concat":
            return sum(outs)
        if len(set(outs)) > 1:
            raise CaseError(f"children put out different widths {outs}", path=at)
        if self.side and width != outs[0]:
            raise CaseError(
                f"side joins the input of width {width} to outputs of {outs[0]}", path=at
            )
        return outs[0]

    def rows_after(self, at: str = "$.model") -> int:
        """The sum of the children's for ``stack``, else what all of them put out."""
        rows = [child.rows_after(f"{at}.children[{i}]") for i, child in enumerate(self.children)]
        if self.merge == "stack":
            return sum(rows) + self.side
        if len(set(rows)) > 1:
            raise CaseError(f"children enlarge the batch differently: {rows}", path=at)
        return rows[0]

    def inside(self, width: int, at: str) -> Iterator[Child | Brought]:
        """The children, each in a module that takes the second input if there is one."""
        for i, child in enumerate(self.children):
            here, name = f"{at}.children[{i}]", f"branches.{i}"
            if self.side:
                out = child.width_after(width, here)
                inner = Child("inner", child, width, here)
                yield Brought(
                    name,
                    "sided",
                    width,
                    out,
                    child=inner,
                    callable_alone=False,
                    returns_its_input=child.returns_its_input(),
                )
            else:
                yield Child(name, child, width, here)

    def visit(self, walk: Walk, path: str, x: bool, grad: bool) -> Visit:
        """The children, in order."""
        # The second input is the first one, and only a stack joins it to the output.
        out = self.side and self.merge == "stack" and x
        for i, child in enumerate(self.children):
            inner = join(path, "branches", str(i))
            if self.side:
                yield Called(inner, grad, x, asked=True)
                inner = join(inner, "inner")
            out |= yield from walk.visit(child, inner, x, grad=grad)
        return out

    def saves(self) -> bool:
        """If a child does: of what is joined or added up the backward needs nothing."""
        return any(child.saves() for child in self.children)

    def ends_with(self) -> Iterator[str]:
        """The last child: what joins or adds them up keeps nothing."""
        name = f"branches.{len(self.children) - 1}"
        yield from (name, f"{name}.inner") if self.side else (name,)

    def module(self, width: int, build: Build) -> Value:
        """A module of ours."""
        children: list[Value] = []
        for i, child in enumerate(self.children):
            name = f"branches.{i}.inner" if self.side else f"branches.{i}"
            made = build(Child(name, child, width))
            children.append(call("steps.modules.branches.Sided", made) if self.side else made)
        kind = "SidedBranches" if self.side else "Branches"
        items = Items("list", tuple(children))
        return call(f"steps.modules.branches.{kind}", items, self.merge)

    def words(self) -> list[str]:
        """``sum``, ``side input``."""
        return [self.merge, "side input"] if self.side else [self.merge]

    def simpler(self) -> Iterator[Node]:
        """Without the second input."""
        if self.side:
            yield changed(self, side=False)

"""``nn.Sequential``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from fsdpfuzz.case.modules.base import Brought, Build, Child, NodeBase
from fsdpfuzz.case.modules.walk import Visit, Walk
from fsdpfuzz.case.paths import join
from fsdpfuzz.case.recipe import Value, call

if TYPE_CHECKING:
    from fsdpfuzz.case.modules import Node


class Sequential(NodeBase, tag="sequential", frozen=True, kw_only=True):
    """``nn.Sequential`` of the children, in order."""

    classes: ClassVar[tuple[str, ...]] = ("torch.nn.Sequential", "steps.modules.chain.Chain")
    calls_all: ClassVar[bool] = True
    takes_rows: ClassVar[bool] = True
    children: Annotated[tuple[Node, ...], Meta(max_length=64)]

    def width_after(self, width: int, at: str = "$.model") -> int:
        """What the last child puts out."""
        for i, child in enumerate(self.children):
            width = child.width_after(width, f"{at}.children[{i}]")
        return width

    def rows_after(self, at: str = "$.model") -> int:
        """The product of the children's."""
        rows = 1
        for i, child in enumerate(self.children):
            rows *= child.rows_after(f"{at}.children[{i}]")
        return rows

    def inside(self, width: int, at: str) -> Iterator[Child | Brought]:
        """The children."""
        for i, child in enumerate(self.children):
            here = f"{at}.children[{i}]"
            yield Child(f"{i}", child, width, here)
            width = child.width_after(width, here)

    def visit(self, walk: Walk, path: str, x: bool, grad: bool) -> Visit:
        """The children, one after the other."""
        for i, child in enumerate(self.children):
            x = yield from walk.visit(child, join(path, f"{i}"), x, grad=grad)
        return x

    def last(self) -> tuple[str, Node] | None:
        """The last child."""
        return (f"{len(self.children) - 1}", self.children[-1]) if self.children else None

    def passed_on(self) -> Iterator[str]:
        """The last child, and those before it as long as each returns its input."""
        return self._last_ones(lambda child: child.returns_its_input())

    def passes_no_rows(self) -> Iterator[str]:
        """The same by what each does without rows."""
        return self._last_ones(lambda child: child.returns_no_rows())

    def _last_ones(self, returns: Callable[[Node], bool]) -> Iterator[str]:
        for i, child in reversed(list(enumerate(self.children))):
            yield f"{i}"
            if not returns(child):
                return

    def returns_its_input(self) -> bool:
        """If each child does."""
        return all(child.returns_its_input() for child in self.children)

    def saves(self) -> bool:
        """If a child does."""
        return any(child.saves() for child in self.children)

    def returns_no_rows(self) -> bool:
        """If each child does."""
        return all(child.returns_no_rows() for child in self.children)

    def takes(self) -> str:
        """As PyTorch's own modules call it."""
        return "input"

    def module(self, width: int, build: Build) -> Value:
        """PyTorch's own; `Lowering` puts one of ours where it has to look for checkpoints."""
        children = [build(child) for child in self.inside(width, "") if isinstance(child, Child)]
        return call("torch.nn.Sequential", *children)

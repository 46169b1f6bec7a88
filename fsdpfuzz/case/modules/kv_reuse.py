"""Layers that attend to the keys and values of one module before them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from fsdpfuzz.case.base import Count
from fsdpfuzz.case.modules.base import Brought, Build, Child, NodeBase, changed, takes_features
from fsdpfuzz.case.modules.encoder_layer import ATTENTION
from fsdpfuzz.case.modules.walk import Visit, Walk
from fsdpfuzz.case.paths import join
from fsdpfuzz.case.recipe import Items, Value, call
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.modules import Node

KEYS_VALUES, REUSING = "keys_values", "reusing"
"""The kinds of the module that puts out keys and values, and of those that are given them."""


class KvReuse(NodeBase, tag="kv_reuse", frozen=True, kw_only=True):
    """``k, v = source(x)``, and then ``x = x + layer(x, k, v)`` for one layer after the other.

    There may be fewer heads of keys and values than of queries, which then share them.
    """

    classes: ClassVar[tuple[str, ...]] = ("steps.modules.kv_reuse.KvReuse",)
    scratch: ClassVar[int] = ATTENTION
    joins_rows: ClassVar[bool] = True
    attends: ClassVar[bool] = True
    heads: Count = 1
    kv_heads: Count = 1
    # Of one nothing would be used again.
    layers: Annotated[int, Meta(ge=2, le=4)] = 2

    def width_after(self, width: int, at: str = "$.model") -> int:
        """Keeps the width, which the heads must divide, as those of keys divide theirs."""
        takes_features(self, width, at)
        if width % self.heads:
            raise CaseError(f"width {width} is not divisible by heads={self.heads}", path=at)
        if self.heads % self.kv_heads:
            text = f"heads={self.heads} is not divisible by kv_heads={self.kv_heads}"
            raise CaseError(text, path=at)
        return width

    def inside(self, width: int, at: str) -> Iterator[Child | Brought]:
        """The module that puts out keys and values, and the layers."""
        own = (width // self.heads * self.kv_heads, width)
        held = (("keys", own), ("values", own))
        yield Brought("source", KEYS_VALUES, width, own[0], held, callable_alone=False, takes="x")
        held = (("queries", (width, width)), ("out", (width, width)))
        for name in self._layers():
            yield Brought(name, REUSING, width, width, held, callable_alone=False, takes="x")

    def visit(self, walk: Walk, path: str, x: bool, grad: bool) -> Visit:
        """One after the other, each of which adds to its input."""
        given = yield from walk.plain(path, ("source",), x, grad=grad)
        return (yield from walk.plain(path, self._layers(), given, grad=grad))

    def module(self, width: int, build: Build) -> Value:
        """A module of ours."""
        room = "steps.modules.kv_reuse"
        source = call(f"{room}.KeysValues", width, width // self.heads * self.kv_heads)
        layers = [call(f"{room}.Reusing", width, self.heads, self.kv_heads) for _ in self._layers()]
        return call(f"{room}.KvReuse", source, Items("list", tuple(layers)))

    def _layers(self) -> list[str]:
        return [join("layers", str(i)) for i in range(self.layers)]

    def words(self) -> list[str]:
        """``2 heads``, ``1 of keys``, ``3 layers``."""
        words = [f"{self.heads} head{'s' * (self.heads > 1)}"]
        words += [f"{self.kv_heads} of keys"] if self.kv_heads < self.heads else []
        return [*words, f"{self.layers} layers"]

    def simpler(self) -> Iterator[Node]:
        """Two layers; one head."""
        if self.layers > 2:
            yield changed(self, layers=2)
        if self.heads > 1:
            yield changed(self, heads=1, kv_heads=1)

"""Learnt embeddings of positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from fsdpfuzz.case.base import Width
from fsdpfuzz.case.modules.base import Build, Leaf, Shape, takes_features
from fsdpfuzz.case.recipe import Value, call


class Positions(Leaf, tag="positions", frozen=True, kw_only=True):
    """Adds a learnt embedding of each position, ``nn.Embedding(rows, width)``."""

    classes: ClassVar[tuple[str, ...]] = ()
    inner_kinds: ClassVar[tuple[str, ...]] = ("embedding",)
    joins_rows: ClassVar[bool] = True
    rows: Width

    def width_after(self, width: int, at: str = "$.model") -> int:
        """Keeps the width."""
        return takes_features(self, width, at)

    def own_parameters(self, width: int) -> Iterator[tuple[str, Shape]]:
        """The table."""
        yield "table.weight", (self.rows, width)

    def module(self, width: int, build: Build) -> Value:
        """A module of ours."""
        return call("steps.modules.positions.Positions", self.rows, width)

"""A parameter without elements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from fsdpfuzz.case.modules.base import Build, Leaf, Shape, takes_features
from fsdpfuzz.case.recipe import Value, call


class Empty(Leaf, tag="empty", frozen=True, kw_only=True):
    """Adds ``x @ rows.T @ rows``, as an adapter does, with no row: zeros.

    The parameter takes part in forward and backward, and its gradient has no element either.
    """

    classes: ClassVar[tuple[str, ...]] = ("steps.modules.empty.Empty",)
    shows_width: ClassVar[bool] = True

    def width_after(self, width: int, at: str = "$.model") -> int:
        """Keeps the width."""
        return takes_features(self, width, at)

    def own_parameters(self, width: int) -> Iterator[tuple[str, Shape]]:
        """No row of the width."""
        yield "rows", (0, width)

    def multiplies(self) -> bool:
        """By its rows."""
        return True

    def module(self, width: int, build: Build) -> Value:
        """A module of ours."""
        return call("steps.modules.empty.Empty", width)

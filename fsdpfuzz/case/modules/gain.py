"""One learnt number that the data are multiplied by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.modules.base import Build, Leaf, Shape, changed, takes_features
from fsdpfuzz.case.recipe import Value, call

if TYPE_CHECKING:
    from fsdpfuzz.case.modules import Node


class Gain(Leaf, tag="gain", frozen=True, kw_only=True):
    """Multiplies by one learnt number: shape ``(1,)``, or ``()`` when ``scalar`` is set."""

    classes: ClassVar[tuple[str, ...]] = ("steps.modules.gain.Gain",)
    shows_width: ClassVar[bool] = True
    scalar: bool = False

    def width_after(self, width: int, at: str = "$.model") -> int:
        """Keeps the width."""
        return takes_features(self, width, at)

    def own_parameters(self, width: int) -> Iterator[tuple[str, Shape]]:
        """One element."""
        yield "gain", () if self.scalar else (1,)

    def multiplies(self) -> bool:
        """By its number."""
        return True

    def module(self, width: int, build: Build) -> Value:
        """A module of ours."""
        return call("steps.modules.gain.Gain", *(() if self.scalar else (1,)))

    def simpler(self) -> Iterator[Node]:
        """With one dimension."""
        if self.scalar:
            yield changed(self, scalar=False)

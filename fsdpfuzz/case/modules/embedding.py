"""``nn.Embedding``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from fsdpfuzz.case.base import Width
from fsdpfuzz.case.modules.base import TOKENS, Build, Leaf, Shape
from fsdpfuzz.case.recipe import Value, call
from fsdpfuzz.errors import CaseError


class Embedding(Leaf, tag="embedding", frozen=True, kw_only=True):
    """``nn.Embedding(rows, out)``; takes the tokens, so it stands first in the data flow."""

    classes: ClassVar[tuple[str, ...]] = ("torch.nn.Embedding",)
    shows_width: ClassVar[bool] = True
    cut_by_rows: ClassVar[int | None] = 0
    rows: Width
    out: Width

    def width_after(self, width: int, at: str = "$.model") -> int:
        """``out``, for tokens."""
        if width != TOKENS:
            raise CaseError("takes tokens, but stands behind a layer", path=at)
        return self.out

    def own_parameters(self, width: int) -> Iterator[tuple[str, Shape]]:
        """A weight of shape ``(rows, out)``."""
        yield "weight", (self.rows, self.out)

    def takes(self) -> str:
        """As PyTorch's own modules call it."""
        return "input"

    def module(self, width: int, build: Build) -> Value:
        """PyTorch's own."""
        return call("torch.nn.Embedding", self.rows, self.out)

"""``nn.Dropout``."""

from __future__ import annotations

from fsdpfuzz.case.base import Probability, written
from fsdpfuzz.case.modules.base import Build, Leaf, takes_features
from fsdpfuzz.case.recipe import Value, call


class Dropout(Leaf, tag="dropout", frozen=True, kw_only=True):
    """``nn.Dropout(p)``; the random state is set alike before each forward."""

    p: Probability = written(0.1)

    def width_after(self, width: int, at: str = "$.model") -> int:
        """Keeps the width."""
        return takes_features(self, width, at)

    def takes(self) -> str:
        """As PyTorch's own modules call it."""
        return "input"

    # ``dropout`` in aten/src/ATen/native/Dropout.cpp returns its input where it has no elements.
    def returns_no_rows(self) -> bool:
        """It does."""
        return True

    def module(self, width: int, build: Build) -> Value:
        """PyTorch's own."""
        return call("torch.nn.Dropout", self.p)

    def draws_random(self) -> bool:
        """Which elements it drops."""
        return self.p > 0.0

    def words(self) -> list[str]:
        """``p 0.5``."""
        return [f"p {self.p:g}"]

"""``nn.LayerNorm`` and ``nn.RMSNorm``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from fsdpfuzz.case.modules.base import (
    Build,
    Leaf,
    Shape,
    changed,
    takes_features,
    without_defaults,
)
from fsdpfuzz.case.recipe import Value, call

if TYPE_CHECKING:
    from fsdpfuzz.case.modules import Node

RMS_EPS = 1e-05
"""That of ``LayerNorm``."""


class Norm(Leaf, tag="norm", frozen=True, kw_only=True):
    """``nn.LayerNorm(width)`` or ``nn.RMSNorm(width)``; keeps the width."""

    classes: ClassVar[tuple[str, ...]] = ("torch.nn.LayerNorm", "torch.nn.RMSNorm")
    shows_width: ClassVar[bool] = True
    normalises: ClassVar[bool] = True
    variant: Literal["layer", "rms"] = "layer"
    affine: bool = True

    def width_after(self, width: int, at: str = "$.model") -> int:
        """Keeps the width."""
        return takes_features(self, width, at)

    def own_parameters(self, width: int) -> Iterator[tuple[str, Shape]]:
        """A weight, and for ``LayerNorm`` a bias, if affine."""
        if self.affine:
            yield "weight", (width,)
            if self.variant == "layer":
                yield "bias", (width,)

    def takes_lower_dtypes(self) -> bool:
        """``nn.RMSNorm`` does, on every device, and puts out the dtype of its inputs."""
        return self.variant == "rms"

    def takes(self) -> str:
        """``RMSNorm`` has a name of its own for it."""
        return {"layer": "input", "rms": "x"}[self.variant]

    def multiplies(self) -> bool:
        """``nn.RMSNorm`` ends in a product with its weight."""
        return self.variant == "rms" and self.affine

    def module(self, width: int, build: Build) -> Value:
        """PyTorch's own."""
        name = {"layer": "LayerNorm", "rms": "RMSNorm"}[self.variant]
        options = without_defaults(self, affine="elementwise_affine")
        if self.variant == "rms":
            # By default it is the least of the input's dtype, and the reference has another dtype.
            options["eps"] = RMS_EPS
        return call(f"torch.nn.{name}", width, **options)

    def words(self) -> list[str]:
        """``rms``, ``no affine``."""
        words = ["rms"] if self.variant == "rms" else []
        return words if self.affine else [*words, "no affine"]

    def simpler(self) -> Iterator[Node]:
        """``LayerNorm``; without parameters."""
        if self.variant != "layer":
            yield changed(self, variant="layer")
        if self.affine:
            yield changed(self, affine=False)

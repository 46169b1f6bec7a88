"""A convolution and its batch norm, which keeps running statistics of what it normalises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import Count
from fsdpfuzz.case.modules.base import (
    Brought,
    Build,
    Child,
    NodeBase,
    changed,
    takes_features,
    without_defaults,
)
from fsdpfuzz.case.modules.walk import Visit, Walk
from fsdpfuzz.case.recipe import Value, call
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.modules import Node

BATCH_NORM = "batch_norm"
"""The kind of the norm in it."""
_STATISTICS = ("bn.running_mean", "bn.running_var")
_BUFFERS = (*_STATISTICS, "bn.num_batches_tracked")


class ConvNorm(NodeBase, tag="conv_norm", frozen=True, kw_only=True):
    """``nn.Conv1d`` along the features, ``nn.BatchNorm1d`` of what it puts out, and their mean.

    Each rank keeps the running statistics of its own inputs: FSDP synchronises no buffers.
    """

    classes: ClassVar[tuple[str, ...]] = ("steps.modules.conv_norm.ConvNorm",)
    shows_width: ClassVar[bool] = True
    joins_rows: ClassVar[bool] = True
    channels: Count = 1
    affine: bool = True

    def width_after(self, width: int, at: str = "$.model") -> int:
        """Keeps the width."""
        # "Expected more than 1 value per channel when training" (torch/nn/functional.py): a batch
        # may be of one.
        if takes_features(self, width, at) == 1:
            raise CaseError("batch norm needs two values for each channel", path=at)
        return width

    def inside(self, width: int, at: str) -> Iterator[Child | Brought]:
        """The convolution, and the norm."""
        shape = (self.channels, self.channels, 3)
        yield Brought("conv", "conv", width, width, (("weight", shape),), callable_alone=False)
        learnt = (("weight", (self.channels,)), ("bias", (self.channels,)))
        yield Brought(
            "bn",
            BATCH_NORM,
            width,
            width,
            learnt if self.affine else (),
            callable_alone=False,
            buffers=tuple(name.removeprefix("bn.") for name in _BUFFERS),
        )

    def visit(self, walk: Walk, path: str, x: bool, grad: bool) -> Visit:
        """One after the other."""
        return (yield from walk.plain(path, ("conv", "bn"), x, grad=grad))

    def changed_buffers(self) -> tuple[str, ...]:
        """All of the norm's."""
        return _BUFFERS

    def running_buffers(self) -> tuple[str, ...]:
        """Mean and variance."""
        return _STATISTICS

    def hands_views(self) -> bool:
        """Its rows, as one channel and then as many as there are."""
        return True

    def module(self, width: int, build: Build) -> Value:
        """A module of ours."""
        options = without_defaults(self, affine="affine")
        return call("steps.modules.conv_norm.ConvNorm", self.channels, **options)

    def words(self) -> list[str]:
        """``2 channels``, ``no affine``."""
        words = [f"{self.channels} channel{'s' * (self.channels > 1)}"]
        return words if self.affine else [*words, "no affine"]

    def simpler(self) -> Iterator[Node]:
        """Without parameters of the norm."""
        if self.affine:
            yield changed(self, affine=False)

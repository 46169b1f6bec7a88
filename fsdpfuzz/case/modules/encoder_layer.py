"""``nn.TransformerEncoderLayer``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from fsdpfuzz.case.base import Count, Probability, Width
from fsdpfuzz.case.modules.base import Build, Leaf, Shape, changed, takes_features
from fsdpfuzz.case.paths import join
from fsdpfuzz.case.recipe import Global, Value, call
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.modules import Node

ATTENTION = (1 << 20) + (96 << 10)
"""Bytes that scaled dot product attention allocates for itself: seen on an H200 in bfloat16, 1 MiB
in forward and 96 KiB in backward, for two tokens as for more."""
MULTIHEAD = "multihead_attention"
"""The kind of ``nn.MultiheadAttention``."""
Feedforward = Literal["relu", "silu"]
"""What PyTorch's transformer layers compute between their two linear layers. At the kink of relu
rounding decides on all of a gradient, so it is not drawn. Nor is there gelu: on a GPU their fast
path, which they leave where a module has hooks, takes the tanh approximation of it."""
# It reads ``out_proj.weight`` and never calls ``out_proj``.
PROJECTIONS = ("linear",)
"""Kinds of the modules in PyTorch's attention, which are no places."""


class EncoderLayer(Leaf, tag="encoder_layer", frozen=True, kw_only=True):
    """``nn.TransformerEncoderLayer`` on ``(batch, length, width)``, with a causal mask if asked."""

    classes: ClassVar[tuple[str, ...]] = ("steps.modules.encoder_layer.EncoderLayer",)
    inner_kinds: ClassVar[tuple[str, ...]] = (
        *PROJECTIONS,
        MULTIHEAD,
        "norm",
        "encoder_stack_layer",
    )
    scratch: ClassVar[int] = ATTENTION
    joins_rows: ClassVar[bool] = True
    attends: ClassVar[bool] = True
    heads: Count = 1
    hidden: Width = 8
    dropout: Probability = 0.0
    norm_first: bool = False
    causal: bool = False
    fn: Feedforward = "relu"

    def width_after(self, width: int, at: str = "$.model") -> int:
        """Keeps the width, which the heads must divide."""
        takes_features(self, width, at)
        if width % self.heads:
            raise CaseError(f"width {width} is not divisible by heads={self.heads}", path=at)
        return width

    def own_parameters(self, width: int) -> Iterator[tuple[str, Shape]]:
        """Those of the layer inside."""
        for name, shape in layer_parameters(width, self.hidden, cross_attention=False):
            yield join("layer", name), shape

    def module(self, width: int, build: Build) -> Value:
        """A module of ours."""
        return call(
            "steps.modules.encoder_layer.EncoderLayer",
            width,
            self.heads,
            self.hidden,
            self.dropout,
            self.norm_first,
            self.causal,
            **feedforward(self.fn),
        )

    def draws_random(self) -> bool:
        """Dropout."""
        return self.dropout > 0.0

    def words(self) -> list[str]:
        """``2 heads``, ``dropout 0.1``, ``silu``, ``norm_first``, ``causal``."""
        words = [f"{self.heads} heads"]
        words += [f"dropout {self.dropout:g}"] if self.dropout else []
        words += [] if self.fn == "relu" else [self.fn]
        return words + [name for name in ("norm_first", "causal") if getattr(self, name)]

    def simpler(self) -> Iterator[Node]:
        """Without dropout, mask and pre-norm; one head."""
        if self.dropout:
            yield changed(self, dropout=0.0)
        for name in ("causal", "norm_first"):
            if getattr(self, name):
                yield changed(self, **{name: False})
        if self.heads > 1:
            yield changed(self, heads=1)


def feedforward(fn: Feedforward) -> dict[str, Value]:
    """The keyword argument for it; none for PyTorch's default."""
    if fn == "relu":
        return {}
    return {"fn": Global(f"torch.nn.functional.{fn}")}


def layer_parameters(
    width: int, hidden: int, *, cross_attention: bool
) -> Iterator[tuple[str, Shape]]:
    """The parameters of PyTorch's encoder layer, or of its decoder layer."""
    for name in ("self_attn", "multihead_attn")[: 2 if cross_attention else 1]:
        for own, shape in attention_parameters(width):
            yield join(name, own), shape
    for name, out, ins in (("linear1", hidden, width), ("linear2", width, hidden)):
        yield join(name, "weight"), (out, ins)
        yield join(name, "bias"), (out,)
    for i in range(3 if cross_attention else 2):
        yield join(f"norm{i + 1}", "weight"), (width,)
        yield join(f"norm{i + 1}", "bias"), (width,)


def attention_parameters(width: int) -> Iterator[tuple[str, Shape]]:
    """The parameters of ``nn.MultiheadAttention``."""
    yield "in_proj_weight", (3 * width, width)
    yield "in_proj_bias", (3 * width,)
    yield "out_proj.weight", (width, width)
    yield "out_proj.bias", (width,)

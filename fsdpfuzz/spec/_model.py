"""The model tree: what `ranks/_build.py` turns into ``nn.Module`` objects.

A tree maps the last dimension of its input, its *width*, to a new width. Each node says
only what it puts out; what comes in follows from the data flow, so editing one width by
hand never leaves a contradiction two layers further on.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from fsdpfuzz.spec._base import Count, Part, Width

ActivationName = Literal["gelu", "silu", "tanh", "softplus", "relu"]
Probability = Annotated[float, Meta(ge=0.0, le=0.9)]


class Linear(Part, tag="linear", tag_field="kind", frozen=True, kw_only=True):
    """``nn.Linear(width, out, bias=bias)``."""

    out: Width
    bias: bool = True


class Norm(Part, tag="norm", tag_field="kind", frozen=True, kw_only=True):
    """``nn.LayerNorm(width)`` or ``nn.RMSNorm(width)``; keeps the width."""

    variant: Literal["layer", "rms"] = "layer"
    affine: bool = True


class Embedding(Part, tag="embedding", tag_field="kind", frozen=True, kw_only=True):
    """``nn.Embedding(rows, out)``; takes the tokens, so it stands first in the data flow."""

    rows: Width
    out: Width


class Activation(Part, tag="activation", tag_field="kind", frozen=True, kw_only=True):
    """A function without parameters; keeps the width."""

    fn: ActivationName = "gelu"


class Dropout(Part, tag="dropout", tag_field="kind", frozen=True, kw_only=True):
    """``nn.Dropout(p)``; the random state is set alike before each forward."""

    p: Probability = 0.1


class Gain(Part, tag="gain", tag_field="kind", frozen=True, kw_only=True):
    """Multiplies by one learnt number: shape ``(1,)``, or ``()`` when ``scalar`` is set."""

    scalar: bool = False


class Buffered(Part, tag="buffered", tag_field="kind", frozen=True, kw_only=True):
    """Multiplies by a buffer of shape ``(width,)``.

    ``updates`` also counts forwards in train mode in an integer buffer; under activation
    checkpointing the recomputation counts as well, in FSDP and in the reference alike.
    """

    persistent: bool = True
    updates: bool = False


class Idle(Part, tag="idle", tag_field="kind", frozen=True, kw_only=True):
    """Holds ``nn.Linear(width, width)`` and never calls it: parameters that stay unused."""


class Lora(Part, tag="lora", tag_field="kind", frozen=True, kw_only=True):
    """A linear layer with a low-rank adapter beside it: ``base(x) + up(down(x))``."""

    out: Width
    rank: Count = 1
    bias: bool = True


class Matrix(Part, tag="matrix", tag_field="kind", frozen=True, kw_only=True):
    """``body`` followed by a product with a ``(width, width)`` parameter of its own.

    With ``buffered`` a buffer of the same shape is held too (and added, so that it counts).
    """

    body: Node
    buffered: bool = False


class Sequential(Part, tag="sequential", tag_field="kind", frozen=True, kw_only=True):
    """``nn.Sequential`` of the children, in order."""

    children: Annotated[tuple[Node, ...], Meta(max_length=64)]


class Residual(Part, tag="residual", tag_field="kind", frozen=True, kw_only=True):
    """``x + body(x)``; the body keeps the width."""

    body: Node


class Branches(Part, tag="branches", tag_field="kind", frozen=True, kw_only=True):
    """Every child gets the same input.

    ``merge``: ``concat`` joins the last dimension, ``sum`` adds (equal widths), ``stack``
    joins the batch dimension (equal widths). ``side`` hands every child a second input
    that it ignores; that input is joined to a ``stack``.
    """

    children: Annotated[tuple[Node, ...], Meta(min_length=1, max_length=16)]
    merge: Literal["concat", "sum", "stack"] = "concat"
    side: bool = False


class Repeat(Part, tag="repeat", tag_field="kind", frozen=True, kw_only=True):
    """Calls ``body`` ``times`` times in a row; the body keeps the width.

    ``no_grad`` adds, after each call, a second one under ``torch.no_grad()``: of the whole
    body, or of the body's first child, when that is a Sequential.
    """

    body: Node
    times: Annotated[int, Meta(ge=1, le=16)] = 2
    no_grad: Literal["off", "body", "first_child"] = "off"


class Switch(Part, tag="switch", tag_field="kind", frozen=True, kw_only=True):
    """Runs one of its children, the first until a `flip` operation picks the next one."""

    children: Annotated[tuple[Node, ...], Meta(min_length=2, max_length=4)]


class EncoderLayer(Part, tag="encoder_layer", tag_field="kind", frozen=True, kw_only=True):
    """``nn.TransformerEncoderLayer`` on ``(batch, length, width)``, with a causal mask if asked."""

    heads: Count = 1
    hidden: Width = 8
    dropout: Probability = 0.0
    norm_first: bool = False
    causal: bool = False


class Positions(Part, tag="positions", tag_field="kind", frozen=True, kw_only=True):
    """Adds a learnt embedding of each position, ``nn.Embedding(rows, width)``."""

    rows: Width


class Transformer(Part, tag="transformer", tag_field="kind", frozen=True, kw_only=True):
    """``nn.Transformer`` between an embedding and an output head with the embedding's weight.

    The same tokens are source and target. Two buffers (one of them integer) take part.
    """

    rows: Width
    width: Width
    heads: Count = 2
    hidden: Width = 8
    encoders: Count = 2
    decoders: Count = 2
    dropout: Probability = 0.1


Leaf = (
    Linear
    | Norm
    | Embedding
    | Activation
    | Dropout
    | Gain
    | Buffered
    | Idle
    | Lora
    | EncoderLayer
    | Positions
    | Transformer
)
Node = Leaf | Matrix | Sequential | Residual | Branches | Repeat | Switch
NodeKind = Literal[
    "linear",
    "norm",
    "embedding",
    "gain",
    "buffered",
    "lora",
    "matrix",
    "sequential",
    "residual",
    "branches",
    "sided",
    "repeat",
    "encoder_layer",
    "encoder_stack_layer",
    "decoder_stack_layer",
]

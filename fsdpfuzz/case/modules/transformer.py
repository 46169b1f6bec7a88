"""``nn.Transformer`` with tied embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from fsdpfuzz.case.base import Count, Probability, Width, written
from fsdpfuzz.case.modules.base import TOKENS, Brought, Build, Child, NodeBase, Shape
from fsdpfuzz.case.modules.encoder_layer import (
    ATTENTION,
    MULTIHEAD,
    Feedforward,
    feedforward,
    layer_parameters,
)
from fsdpfuzz.case.modules.walk import Visit, Walk
from fsdpfuzz.case.paths import join
from fsdpfuzz.case.recipe import Value, call
from fsdpfuzz.errors import CaseError


class Transformer(NodeBase, tag="transformer", frozen=True, kw_only=True):
    """``nn.Transformer`` between an embedding and an output head with the embedding's weight.

    The same tokens are source and target. Two buffers (one of them integer) take part.
    """

    inner_kinds: ClassVar[tuple[str, ...]] = ("embedding", "linear", "norm", MULTIHEAD)
    shows_width: ClassVar[bool] = True
    scratch: ClassVar[int] = ATTENTION
    joins_rows: ClassVar[bool] = True
    attends: ClassVar[bool] = True
    rows: Width
    width: Width
    heads: Count = 2
    hidden: Width = 8
    encoders: Count = 2
    decoders: Count = 2
    dropout: Probability = written(0.1)
    fn: Feedforward = "relu"

    def width_after(self, width: int, at: str = "$.model") -> int:
        """As many as there are tokens; the heads must divide its own width."""
        if width != TOKENS:
            raise CaseError("takes tokens, but stands behind a layer", path=at)
        if self.width % self.heads:
            raise CaseError(f"width {self.width} is not divisible by heads={self.heads}", path=at)
        return self.rows

    def inside(self, width: int, at: str) -> Iterator[Child | Brought]:
        """The layers of both stacks, their norms, and the head."""
        width = self.width
        for stack, layers in (("encoder", self.encoders), ("decoder", self.decoders)):
            prefix = join("transformer", stack)
            shapes = tuple(layer_parameters(width, self.hidden, cross_attention=stack == "decoder"))
            for i in range(layers):
                name = join(prefix, "layers", str(i))
                # A decoder's layer takes what the encoder put out besides, so nobody can call it
                # with one tensor.
                kind, alone = f"{stack}_stack_layer", stack == "encoder"
                yield Brought(name, kind, width, width, shapes, callable_alone=alone, takes="src")
            norm = (("weight", (width,)), ("bias", (width,)))
            yield Brought(join(prefix, "norm"), "norm", width, width, norm)
        # Without the weight: ``named_parameters`` lists a shared one under its first name alone.
        yield Brought("head", "linear", width, self.rows, (("bias", (self.rows,)),))

    def own_parameters(self, width: int) -> Iterator[tuple[str, Shape]]:
        """The embedding, which the head shares."""
        yield "embed.weight", (self.rows, self.width)

    def own_ties(self) -> Iterator[tuple[str, str]]:
        """The embedding's weight, in the head."""
        yield "embed.weight", "head.weight"

    def own_buffers(self) -> tuple[str, ...]:
        """What is added to the embeddings."""
        return ("vocab_bias", "long_offset")

    # ``nn.Transformer`` calls its layers itself, and looks for no checkpoint on them.
    def visit(self, walk: Walk, path: str, x: bool, grad: bool) -> Visit:
        """All that lies in it."""
        own = grad and walk.own(path)
        return own | (yield from walk.plain(path, walk.below(path), own, grad=grad, ours=False))

    def takes(self) -> str:
        """Source and target in one."""
        return "tokens"

    def module(self, width: int, build: Build) -> Value:
        """A module of ours."""
        return call(
            "steps.modules.transformer.TiedTransformer",
            self.rows,
            self.width,
            self.heads,
            self.hidden,
            self.encoders,
            self.decoders,
            self.dropout,
            **feedforward(self.fn),
        )

    def draws_random(self) -> bool:
        """Dropout."""
        return self.dropout > 0.0

    def words(self) -> list[str]:
        """``2 heads``, ``silu``."""
        words = [f"{self.heads} heads"]
        words += [] if self.fn == "relu" else [self.fn]
        return words if self.dropout == 0.1 else [*words, f"dropout {self.dropout:g}"]

"""``nn.Transformer`` with tied embeddings."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import relu


class TiedTransformer(nn.Module):
    """``nn.Transformer`` between an embedding and a head that shares the embedding's weight."""

    vocab_bias: Tensor
    long_offset: Tensor

    def __init__(
        self,
        rows: int,
        width: int,
        heads: int,
        hidden: int,
        encoders: int,
        decoders: int,
        dropout: float,
        fn: Callable[[Tensor], Tensor] = relu,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(rows, width)
        self.transformer = nn.Transformer(
            width, heads, encoders, decoders, hidden, dropout, fn, batch_first=True
        )
        self.head = nn.Linear(width, rows)
        self.head.weight = self.embed.weight
        self.register_buffer("vocab_bias", torch.linspace(0.1, 1.0, width))
        self.register_buffer("long_offset", torch.ones(width, dtype=torch.int64))

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens ``(batch, length)`` to logits ``(batch, length, rows)``."""
        x = self.embed(tokens)
        source = x + self.vocab_bias + self.long_offset.type_as(x)
        return self.head(self.transformer(source, x + self.vocab_bias))

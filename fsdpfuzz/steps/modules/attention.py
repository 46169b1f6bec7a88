"""``nn.MultiheadAttention`` that is given one tensor three times."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fsdpfuzz.steps.checkpointing import call


class Attention(nn.Module):
    """Self-attention, with a mask if asked."""

    def __init__(
        self, inner: nn.MultiheadAttention, mask: str = "none", weights: bool = False
    ) -> None:
        super().__init__()
        self.inner = inner
        self.batch_first = inner.batch_first
        self.mask = mask
        self.weights = weights

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape ``(batch, length, width)``."""
        attn_mask = padding_mask = None
        if self.mask == "causal":
            attn_mask = nn.Transformer.generate_square_subsequent_mask(
                x.shape[-2], device=x.device, dtype=x.dtype
            )
        if self.mask == "padding":
            beyond = torch.arange(x.shape[-2], device=x.device) >= (x.shape[-2] + 1) // 2
            padding_mask = beyond.expand(x.shape[:-1])
        if not self.batch_first:
            x = x.transpose(0, -2)
        found: Any = call(
            self.inner,
            x,
            x,
            x,
            key_padding_mask=padding_mask,
            need_weights=self.weights,
            attn_mask=attn_mask,
        )
        y, _ = found
        return y if self.batch_first else y.transpose(0, -2)

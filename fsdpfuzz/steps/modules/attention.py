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
        length = x.shape[-2]
        masks = {}
        if self.mask == "causal":
            masks["attn_mask"] = nn.Transformer.generate_square_subsequent_mask(
                length, device=x.device, dtype=x.dtype
            )
        if self.mask == "padding":
            beyond = torch.arange(length, device=x.device) >= (length + 1) // 2
            masks["key_padding_mask"] = beyond.expand(x.shape[:-1])
        if not self.batch_first:
            x = x.transpose(0, -2)
        found: Any = call(self.inner, x, x, x, need_weights=self.weights, **masks)
        y, _ = found
        return y if self.batch_first else y.transpose(0, -2)

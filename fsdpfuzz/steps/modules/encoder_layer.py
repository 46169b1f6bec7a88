"""``nn.TransformerEncoderLayer``."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.functional import relu


class EncoderLayer(nn.Module):
    """``nn.TransformerEncoderLayer`` with a causal mask if asked."""

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        dropout: float,
        norm_first: bool,
        causal: bool,
        fn: Callable[[Tensor], Tensor] = relu,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.layer = nn.TransformerEncoderLayer(
            width, heads, hidden, dropout, fn, batch_first=True, norm_first=norm_first
        )

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape ``(batch, length, width)``."""
        mask = None
        if self.causal:
            mask = nn.Transformer.generate_square_subsequent_mask(
                x.shape[-2], device=x.device, dtype=x.dtype
            )
        return self.layer(x, src_mask=mask)

"""Layers that attend to the keys and values of one module before them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fsdpfuzz.steps.checkpointing import call


def weight(out: int, width: int) -> nn.Parameter:
    """The weight of a projection, as ``nn.Linear`` has it: larger ones saturate the softmax."""
    return nn.Parameter(torch.empty(out, width).uniform_(-1, 1) / width**0.5)


def by_head(x: Tensor, heads: int) -> Tensor:
    """From ``(batch, length, width)`` to ``(batch, heads, length, width / heads)``."""
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


class KeysValues(nn.Module):
    """Puts out the keys and the values of its input."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.keys = weight(size, width)
        self.values = weight(size, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both of shape ``(batch, length, size)``."""
        return functional.linear(x, self.keys), functional.linear(x, self.values)


class Reusing(nn.Module):
    """Attends to keys and values that it is given, each for as many heads as share it."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.queries = weight(width, width)
        self.out = weight(width, width)
        self.heads = heads
        self.kv_heads = kv_heads

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Keeps the shape of ``x``."""
        queries = by_head(functional.linear(x, self.queries), self.heads)
        times = self.heads // self.kv_heads
        keys = by_head(keys, self.kv_heads).repeat_interleave(times, dim=-3)
        values = by_head(values, self.kv_heads).repeat_interleave(times, dim=-3)
        y = functional.scaled_dot_product_attention(queries, keys, values)
        return functional.linear(y.transpose(-3, -2).flatten(-2), self.out)


class KvReuse(nn.Module):
    """All layers attend to the same keys and values."""

    def __init__(self, source: nn.Module, layers: list[nn.Module]) -> None:
        super().__init__()
        self.source = source
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape ``(batch, length, width)``."""
        found: Any = call(self.source, x)
        keys, values = found
        for layer in self.layers:
            x = x + call(layer, x, keys, values)
        return x

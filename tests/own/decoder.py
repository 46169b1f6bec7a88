"""A small decoder as public libraries write them, for ``fsdpfuzz check tests/own/decoder.py``.

Grouped attention, tied embeddings, a dict that goes in, an object with a loss that comes out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

TOKENS, WIDTH, HEADS, LAYERS = 11, 8, 4, 2


class Attention(nn.Module):
    """Two query heads share each head of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k = nn.Linear(WIDTH, WIDTH // 2, bias=False)
        self.v = nn.Linear(WIDTH, WIDTH // 2, bias=False)
        self.o = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Causal."""
        rows, length, _ = x.shape
        q = self.q(x).view(rows, length, HEADS, -1).transpose(1, 2)
        k, v = (
            layer(x).view(rows, length, HEADS // 2, -1).transpose(1, 2).repeat_interleave(2, 1)
            for layer in (self.k, self.v)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.o(y.transpose(1, 2).reshape(x.shape))
        return out


class Norm(nn.Module):
    """Root mean square."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape."""
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Layer(nn.Module):
    """Attention and a gated layer; a tuple comes out, as it does in public libraries."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = Norm(), Attention()
        self.second_norm = Norm()
        self.gate = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, hidden_states: Tensor) -> tuple[Tensor]:
        """Keeps the shape."""
        x = hidden_states + self.attention(self.norm(hidden_states))
        y = self.second_norm(x)
        return (x + self.down(functional.silu(self.gate(y)) * self.up(y)),)


@dataclass
class Output:
    """What the model returns."""

    loss: Tensor
    logits: Tensor


class Decoder(nn.Module):
    """Embedding, layers, and a head that shares the embedding's weight."""

    positions: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = Norm()
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("positions", torch.arange(16.0) / 16, persistent=False)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Output:
        """The mean cross entropy of the next token."""
        x = self.embedding(input_ids) + self.positions[: input_ids.shape[1], None]
        for layer in self.layers:
            x = layer(hidden_states=x)[0]
        logits = self.head(self.norm(x))
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return Output(loss, logits)


def model() -> nn.Module:
    """Randomly initialised."""
    return Decoder()


def batch(step: int, rank: int) -> dict[str, Tensor]:
    """Other tokens in each step, on each rank."""
    ids = torch.randint(0, TOKENS, (2, 5))
    return {"input_ids": ids, "labels": ids}

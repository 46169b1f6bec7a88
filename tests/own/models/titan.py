"""A decoder as torchtitan writes them: complex rotations in a buffer, layers in a ModuleDict."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional

TOKENS, WIDTH, HEADS, GROUPS, LAYERS, LONGEST = 19, 16, 4, 2, 2, 8


def rotations(width: int, length: int) -> Tensor:
    """``exp(i * position * frequency)`` of shape ``(length, width / 2)``."""
    frequencies = 1.0 / 10000 ** (torch.arange(0, width, 2).float() / width)
    angles = torch.outer(torch.arange(length), frequencies)
    return torch.polar(torch.ones_like(angles), angles)


def rotated(x: Tensor, freqs_cis: Tensor) -> Tensor:
    """Pairs of numbers are turned as complex ones; in the dtype of ``x``."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    turned = pairs * freqs_cis[: x.shape[1], None]
    return torch.view_as_real(turned).flatten(3).type_as(x)


class Attention(nn.Module):
    """Queries share keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.size = WIDTH // HEADS
        self.wq = nn.Linear(WIDTH, WIDTH, bias=False)
        self.wk = nn.Linear(WIDTH, GROUPS * self.size, bias=False)
        self.wv = nn.Linear(WIDTH, GROUPS * self.size, bias=False)
        self.wo = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        """Causal."""
        rows, length, _ = x.shape
        q, k, v = (
            layer(x).view(rows, length, -1, self.size) for layer in (self.wq, self.wk, self.wv)
        )
        q, k = rotated(q, freqs_cis), rotated(k, freqs_cis)
        k, v = (t.repeat_interleave(HEADS // GROUPS, 2) for t in (k, v))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.wo(y.transpose(1, 2).reshape(rows, length, -1))
        return out


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Linear(WIDTH, 24, bias=False)
        self.w2 = nn.Linear(24, WIDTH, bias=False)
        self.w3 = nn.Linear(WIDTH, 24, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape."""
        out: Tensor = self.w2(functional.silu(self.w1(x)) * self.w3(x))
        return out


class TransformerBlock(nn.Module):
    """Norms come before."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.attention_norm = nn.RMSNorm(WIDTH, eps=1e-5)
        self.ffn_norm = nn.RMSNorm(WIDTH, eps=1e-5)

    def forward(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        """Keeps the shape."""
        h = x + self.attention(self.attention_norm(x), freqs_cis)
        out: Tensor = h + self.feed_forward(self.ffn_norm(h))
        return out


class Transformer(nn.Module):
    """What a stage of a pipeline lacks is None, and passed over."""

    freqs_cis: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(TOKENS, WIDTH)
        self.register_buffer("freqs_cis", rotations(WIDTH // HEADS, LONGEST), persistent=False)
        self.layers = nn.ModuleDict({str(i): TransformerBlock() for i in range(LAYERS)})
        self.norm = nn.RMSNorm(WIDTH, eps=1e-5)
        self.output = nn.Linear(WIDTH, TOKENS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """A score for each token that may be next."""
        h = self.tok_embeddings(tokens) if self.tok_embeddings else tokens
        for layer in self.layers.values():
            h = layer(h, self.freqs_cis)
        h = self.norm(h) if self.norm else h
        return self.output(h) if self.output else h


def model() -> nn.Module:
    """Randomly initialised."""
    return Transformer()


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Tokens, and those that follow."""
    ids = torch.randint(0, TOKENS, (2, 7))
    return ids[:, :-1], ids[:, 1:]


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross entropy."""
    tokens, labels = batch
    return functional.cross_entropy(model(tokens).flatten(0, 1).float(), labels.flatten())


def shard(model: Transformer, mesh: DeviceMesh) -> None:
    """As its ``apply_fsdp``: each block, then embeddings, the last two, and the rest."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(model.tok_embeddings, mesh=mesh, mp_policy=policy)
    for block in model.layers.values():
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(
        [model.norm, model.output], mesh=mesh, mp_policy=policy, reshard_after_forward=False
    )
    fully_shard(model, mesh=mesh, mp_policy=policy)

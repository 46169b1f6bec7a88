"""The modules that PyTorch has no ready-made class for.

Repro scripts quote these classes word for word, so each stands on its own: nothing here
imports anything but torch, and nothing refers to a case.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint


def call(module: nn.Module, *args: Tensor) -> Tensor:
    """Calls ``module``, through ``torch.utils.checkpoint`` where its ``recompute`` says so."""
    options: dict[str, Any] | None = getattr(module, "recompute", None)
    if options is None:
        return module(*args)
    with save_on_cpu(pin_memory=True) if options["offload"] else nullcontext():
        return checkpoint(module, *args, use_reentrant=options["reentrant"])


class Chain(nn.Sequential):
    """``nn.Sequential`` whose children may ask to be recomputed."""

    def forward(self, x: Tensor) -> Tensor:
        """Calls the children in order."""
        for module in self:
            x = call(module, x)
        return x


class Residual(nn.Module):
    """``x + body(x)``."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape of ``x``."""
        return x + call(self.body, x)


class Branches(nn.Module):
    """Every branch gets the same input; the outputs are joined or added."""

    def __init__(self, branches: list[nn.Module], merge: str) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.merge = merge

    def forward(self, x: Tensor) -> Tensor:
        """Joins the last dimension (concat), the first (stack), or adds (sum)."""
        outputs = [call(branch, x) for branch in self.branches]
        if self.merge == "sum":
            return torch.stack(outputs).sum(dim=0)
        return torch.cat(outputs, dim=-1 if self.merge == "concat" else 0)


class Sided(nn.Module):
    """Takes a second input and never looks at it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, side: Tensor) -> Tensor:
        """``inner(x)``."""
        return call(self.inner, x)


class SidedBranches(Branches):
    """Branches that get a second, unused input, which ends up beside their outputs."""

    def forward(self, x: Tensor) -> Tensor:
        """As `Branches`; a stack also holds the second input."""
        side = x
        outputs = [call(branch, x, side) for branch in self.branches]
        if self.merge == "sum":
            return torch.stack(outputs).sum(dim=0)
        if self.merge == "concat":
            return torch.cat(outputs, dim=-1)
        return torch.cat([*outputs, side])


class Repeat(nn.Module):
    """Calls the same module several times."""

    def __init__(self, body: nn.Module, times: int) -> None:
        super().__init__()
        self.body = body
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape of ``x``."""
        for _ in range(self.times):
            x = call(self.body, x)
        return x


class RepeatAside(Repeat):
    """Calls the module, or a part of it, under ``no_grad`` each time as well."""

    def __init__(self, body: nn.Module, times: int, part: str) -> None:
        super().__init__(body, times)
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape of ``x``."""
        for _ in range(self.times):
            x = call(self.body, x)
            again = self.body.get_submodule(self.part)
            with torch.no_grad():
                extra = again(x)
            x = x + extra
        return x


class Switch(nn.Module):
    """Runs one of its branches; ``active`` says which."""

    def __init__(self, branches: list[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.active = 0

    def forward(self, x: Tensor) -> Tensor:
        """The active branch's output."""
        return call(self.branches[self.active], x)


class Gain(nn.Module):
    """Multiplies by one learnt number."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full(shape, 0.9))

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape of ``x``."""
        return x * self.gain


class Buffered(nn.Module):
    """Multiplies by a buffer; may count its forwards in train mode."""

    scale: Tensor
    calls: Tensor

    def __init__(self, width: int, persistent: bool, updates: bool) -> None:
        super().__init__()
        self.updates = updates
        self.register_buffer("scale", torch.linspace(0.5, 1.5, width), persistent=persistent)
        if updates:
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape of ``x``."""
        if self.updates and self.training:
            self.calls += 1
        return x * self.scale


class Idle(nn.Module):
    """Holds a linear layer and never calls it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.idle = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` itself."""
        return x


class Lora(nn.Module):
    """A linear layer with a low-rank adapter beside it."""

    def __init__(self, width: int, out: int, rank: int, bias: bool) -> None:
        super().__init__()
        self.base = nn.Linear(width, out, bias=bias)
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Last dimension ``width`` in, ``out`` out."""
        return call(self.base, x) + call(self.up, call(self.down, x))


class Matrix(nn.Module):
    """A body, then a product with a parameter of the container itself."""

    offset: Tensor

    def __init__(self, body: nn.Module, width: int, buffered: bool) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.body = body
        self.buffered = buffered
        if buffered:
            self.register_buffer("offset", torch.linspace(-0.5, 0.5, width * width).view(width, -1))

    def forward(self, x: Tensor) -> Tensor:
        """Last dimension stays ``width``."""
        matrix = self.matrix + self.offset if self.buffered else self.matrix
        return call(self.body, x) @ matrix


class Positions(nn.Module):
    """Adds a learnt embedding of each position."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, width)

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape ``(batch, length, width)``."""
        return x + self.table(torch.arange(x.shape[-2], device=x.device))


class EncoderLayer(nn.Module):
    """``nn.TransformerEncoderLayer`` with a causal mask if asked."""

    def __init__(
        self, width: int, heads: int, hidden: int, dropout: float, norm_first: bool, causal: bool
    ) -> None:
        super().__init__()
        self.causal = causal
        self.layer = nn.TransformerEncoderLayer(
            width, heads, hidden, dropout, batch_first=True, norm_first=norm_first
        )

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape ``(batch, length, width)``."""
        mask = None
        if self.causal:
            mask = nn.Transformer.generate_square_subsequent_mask(
                x.shape[-2], device=x.device, dtype=x.dtype
            )
        return self.layer(x, src_mask=mask)


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
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(rows, width)
        self.transformer = nn.Transformer(
            width, heads, encoders, decoders, hidden, dropout, batch_first=True
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

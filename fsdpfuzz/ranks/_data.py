"""Inputs and losses: the same numbers in every process that knows seed, rank and index."""

from __future__ import annotations

import torch
from torch import Tensor

from fsdpfuzz.spec import CaseSpec, Dense, Embedding, Node, Transformer

_PROJECTION = 7_919


def generator(seed: int, rank: int, index: int) -> torch.Generator:
    """The random state of one rank's ``index``-th forward; ranks get different data."""
    return torch.Generator().manual_seed(seed + 8 * index + rank + 1)


def draw_inputs(case: CaseSpec, rank: int, index: int) -> Tensor:
    """Inputs on the CPU: float32 ``(batch, [length,] width)`` or int64 ``(batch, length)``."""
    random = generator(case.seed, rank, index)
    inputs = case.inputs
    if isinstance(inputs, Dense):
        middle = () if inputs.length is None else (inputs.length,)
        return torch.randn(inputs.batch, *middle, inputs.width, generator=random)
    return torch.randint(_rows(case.model), (inputs.batch, inputs.length), generator=random)


def loss_of(case: CaseSpec, output: Tensor) -> Tensor:
    """A fixed random projection of the output over its batch size, or its sum."""
    if case.loss == "sum":
        return output.sum()
    random = torch.Generator().manual_seed(case.seed + _PROJECTION)
    projection = torch.randn(output.shape, generator=random)
    return (output * projection.to(output)).sum() / output.shape[0]


def _rows(node: Node) -> int:
    """Number of distinct tokens: the rows of the first embedding in the data flow."""
    if isinstance(node, Embedding | Transformer):
        return node.rows
    children: tuple[Node, ...] = getattr(node, "children", ())
    body: Node | None = getattr(node, "body", None)
    inner = (*children[:1], *((body,) if body is not None else ()))
    return _rows(inner[0])

"""The seam to the implementation under test.

An adapter wraps a planned model and says, afterwards, what this rank holds of it. Another
data-parallel implementation is held to the same invariants by one more adapter. Only the
adapters (`_fsdp1`, `_fsdp2`) touch an FSDP API.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Piece:
    """This rank's part of one parameter, in the tensor that the optimizer holds.

    ``parameter`` may hold parts of several parameters (a flat parameter): the part lies at
    ``offset`` of its flattened local tensor and is ``numel`` elements long. In the full
    tensor it is the flat range from ``start``, or, with ``dim`` set, the slice of length
    ``length`` from ``start`` in that dimension.
    """

    fqn: str
    unit: str | None
    parameter: nn.Parameter
    offset: int
    numel: int
    start: int
    dim: int | None = None
    length: int = 0

    def value(self) -> Tensor:
        """The local values, flattened: ``(numel,)``."""
        return self._part(self.parameter)

    def grad(self) -> Tensor | None:
        """The local gradient, flattened: ``(numel,)``, or None."""
        grad = self.parameter.grad
        return None if grad is None else self._part(grad)

    def of(self, full: Tensor) -> Tensor:
        """The same part of a full tensor, flattened: ``(numel,)``."""
        if self.dim is None:
            return full.reshape(-1)[self.start : self.start + self.numel]
        return full.narrow(self.dim, self.start, self.length).reshape(-1)

    def _part(self, tensor: Tensor) -> Tensor:
        local = getattr(tensor, "_local_tensor", tensor).detach().reshape(-1)
        return local[self.offset : self.offset + self.numel]


class Sharded(Protocol):
    """A model that an adapter has wrapped."""

    model: nn.Module
    units: tuple[str, ...]
    """FQNs of the units that were really made, in ``named_modules`` order."""
    pieces: tuple[Piece, ...]

    def synchronised(self, enabled: bool) -> AbstractContextManager[None]:
        """Forward and backward inside it reduce gradients, or accumulate them locally."""

    def unsharded(self) -> tuple[str, ...]:
        """Units whose parameters are whole on this rank although the plan shards them."""

    def shards(self) -> bool:
        """Whether any unit shards its parameters at all."""

    def resharded(self, modules: Sequence[object]) -> dict[str, int]:
        """How often each unit occurs among ``modules``, which the probe saw being resharded."""

    def held_bytes(self) -> int:
        """Bytes of parameters on this rank: shards, and whatever is whole just now."""

    def grad_bytes(self) -> int:
        """Bytes of gradients on this rank."""


def whole(fqn: str, parameter: nn.Parameter) -> Piece:
    """A parameter that no unit manages: this rank holds all of it."""
    numel = parameter.numel()
    return Piece(fqn, None, parameter, offset=0, numel=numel, start=0)


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes behind the tensors, each storage counted once."""
    storages = {}
    for tensor in tensors:
        storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()
        storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())


def grads_held(pieces: Iterable[Piece]) -> int:
    """Bytes of the gradients of the tensors that an optimizer would hold."""
    held = {id(piece.parameter): piece.parameter.grad for piece in pieces}
    local = [getattr(grad, "_local_tensor", grad) for grad in held.values() if grad is not None]
    return sum(grad.numel() * grad.element_size() for grad in local)


def dtype_of(name: str | None) -> torch.dtype | None:
    """The torch dtype of a name in a `Precision`."""
    names = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
    return None if name is None else names[name]

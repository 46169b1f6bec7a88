"""What a rank holds of a parameter, beside the same part of the whole one."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def value(held: Tensor) -> Tensor:
    """A tensor that this rank holds whole."""
    return held.detach()


def gradient(held: Tensor, lacking: bool) -> Tensor:
    """The gradient of such a tensor; zeros where it may lack one."""
    if not lacking:
        return held.grad  # type: ignore[return-value]
    return torch.zeros_like(held) if held.grad is None else held.grad


def storage_bytes(tensors: Iterable[Tensor | None]) -> int:
    """Bytes behind the tensors, each storage counted once."""
    storages = {}
    for tensor in tensors:
        if tensor is not None:
            storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()
            # By address: each look at a storage may make another Python object.
            storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())


def gradient_bytes(parameters: Iterable[nn.Parameter]) -> int:
    """Bytes of the gradients of the tensors that an optimizer holds."""
    grads = [p.grad for p in parameters if p.grad is not None]
    local: list[Tensor] = [getattr(grad, "_local_tensor", grad) for grad in grads]
    return sum(grad.numel() * grad.element_size() for grad in local)

"""What a rank holds under fsdp2: local tensors of DTensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


def value(p: Any) -> Tensor:
    """What this rank holds of a parameter."""
    return p.to_local().detach()


def gradient(p: Any, lacking: bool) -> Tensor:
    """What this rank holds of its gradient; zeros where it may lack one."""
    if not lacking:
        return p.grad.to_local()
    return torch.zeros_like(p.to_local()) if p.grad is None else p.grad.to_local()


# torch's own arithmetic: shards are uneven, may be empty, and lie along any dimension.
def same_part(whole: Tensor, p: Any) -> Tensor:
    """The same part of the whole tensor."""
    sizes, offsets = compute_local_shape_and_global_offset(p.shape, p.device_mesh, p.placements)
    return whole[tuple(slice(a, a + n) for a, n in zip(offsets, sizes, strict=True))]


def offsets(p: Any) -> Sequence[int]:
    """Where this rank's part begins in the parameter, in each dimension."""
    return compute_local_shape_and_global_offset(p.shape, p.device_mesh, p.placements)[1]

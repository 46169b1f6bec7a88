"""Faults of clipping, injected where FSDP itself would have them."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.tensor import DTensor, Replicate
from torch.nn.utils import clip_grad

from fsdpfuzz.ranks._env import RankEnv


def fsdp1_norm_of_one_rank(_: RankEnv) -> None:
    """Each rank clips by the norm of its own shards."""
    clip = FSDP.clip_grad_norm_

    def of_this_rank(self: FSDP, *args: Any, **options: Any) -> Tensor:
        with mock.patch.object(dist, "all_reduce"):
            return clip(self, *args, **options)

    FSDP.clip_grad_norm_ = of_this_rank  # type: ignore[method-assign]


def fsdp1_always_by_the_2_norm(_: RankEnv) -> None:
    """The type of the norm is ignored."""
    clip = FSDP.clip_grad_norm_

    def by_the_2_norm(self: FSDP, max_norm: float, norm_type: float = 2.0) -> Tensor:
        return clip(self, max_norm, 2.0)

    FSDP.clip_grad_norm_ = by_the_2_norm  # type: ignore[method-assign]


def fsdp2_norm_of_one_rank(_: RankEnv) -> None:
    """Each rank clips by the norm of its own chunks."""
    total = clip_grad._get_total_norm

    def of_this_rank(tensors: Any, *args: Any, **options: Any) -> Tensor:
        if not any(isinstance(tensor, DTensor) for tensor in tensors):
            return total(tensors, *args, **options)
        local = total([t.to_local() for t in tensors if t.to_local().numel()], *args, **options)
        mesh = tensors[0].device_mesh
        return DTensor.from_local(local, mesh, [Replicate()] * mesh.ndim, run_check=False)

    clip_grad._get_total_norm = of_this_rank


def fsdp2_scales_twice(_: RankEnv) -> None:
    """Gradients are scaled once more."""
    scale = clip_grad._clip_grads_with_norm_

    def twice(parameters: Any, max_norm: float, norm: Tensor, foreach: bool | None = None) -> None:
        scale(parameters, max_norm, norm, foreach)
        if any(isinstance(p, DTensor) for p in parameters):
            scale(parameters, max_norm, norm, foreach)

    clip_grad._clip_grads_with_norm_ = twice  # type: ignore[assignment]

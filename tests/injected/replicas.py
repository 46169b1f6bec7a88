"""Faults of replicas and of placements, injected where FSDP itself would have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import _runtime_utils
from torch.distributed.fsdp._fully_shard import _fsdp_param_group

from fsdpfuzz.ranks._env import RankEnv

REDUCE = "foreach_reduce"


def replicas_not_reduced(_: RankEnv) -> None:
    """Gradients are reduced over the shards and not over the replicas."""
    _while_reducing(dist, "all_reduce", lambda _: _nothing)


def replicas_divided_twice(_: RankEnv) -> None:
    """Gradients are divided by the number of replicas once more."""

    def twice(all_reduce: Callable[..., Any]) -> Callable[..., Any]:
        def divided(tensor: Tensor, *args: Any, **options: Any) -> Any:
            tensor.div_(options["group"].size())
            return all_reduce(tensor, *args, **options)

        return divided

    _while_reducing(dist, "all_reduce", twice)


def gradient_along_rows(_: RankEnv) -> None:
    """A gradient is cut along the first dimension, whatever its parameter's placement is."""

    def rows(_: Callable[..., Any]) -> Callable[..., Any]:
        return lambda tensor, *_, **__: [tensor]

    _while_reducing(torch, "chunk", rows)


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _while_reducing(
    owner: Any, name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Has another function in the place of ``owner.name`` in both APIs' gradient reduction."""
    reduce1, reduce2 = _runtime_utils._reduce_grad, getattr(_fsdp_param_group, REDUCE)

    def faulty(reduce: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            with mock.patch.object(owner, name, change(getattr(owner, name))):
                return reduce(*args, **options)

        return run

    _runtime_utils._reduce_grad = faulty(reduce1)
    setattr(_fsdp_param_group, REDUCE, faulty(reduce2))

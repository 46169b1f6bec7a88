"""Faults of reduced gradients, only where units compute in a lower dtype than float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fsdpfuzz.ranks._env import RankEnv

_REDUCTIONS = ("reduce_scatter_tensor", "reduce_scatter_single", "_reduce_scatter_base")


def halved(_: RankEnv) -> None:
    """As if FSDP divided by the number of ranks twice."""
    _after_reducing(lambda grad: grad.mul_(0.5))


def summed(_: RankEnv) -> None:
    """As if FSDP did not divide at all."""
    _after_reducing(lambda grad: grad.mul_(2.0))


def first_lost(_: RankEnv) -> None:
    """Of each part the first element is lost."""
    _after_reducing(lambda grad: grad[:1].zero_())


def _after_reducing(change: Callable[[Tensor], object]) -> None:
    for name in _REDUCTIONS:
        original = getattr(dist, name, None)
        if original is not None:
            setattr(dist, name, _changed(original, change))


def _changed(
    original: Callable[..., Any], change: Callable[[Tensor], object]
) -> Callable[..., Any]:
    def reduce(*args: Any, **options: Any) -> Any:
        work = original(*args, **options)
        output = args[0] if args else options["output"]
        if output.dtype in (torch.float16, torch.bfloat16):
            if work is not None:
                work.wait()
            change(output)
        return work

    return reduce

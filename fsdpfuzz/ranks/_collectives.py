"""Notes every collective of ``torch.distributed`` before it is issued."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from fsdpfuzz.ranks._env import RankEnv

NAMES = (
    "all_gather",
    "all_gather_into_tensor",
    "_all_gather_base",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "_reduce_scatter_base",
    "scatter",
)


def note_collectives(env: RankEnv) -> None:
    """Wraps the functions for good; FSDP looks them up at each call."""
    for name in NAMES:
        original = getattr(distributed_c10d, name, None)
        if original is not None:
            noting = _noting(name, original, env)
            setattr(distributed_c10d, name, noting)
            if hasattr(dist, name):
                setattr(dist, name, noting)


def _noting(name: str, original: Callable[..., Any], env: RankEnv) -> Callable[..., Any]:
    @functools.wraps(original)
    def issue(*args: Any, **kwargs: Any) -> Any:
        tensor = next(
            (value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)), None
        )
        numel = 0 if tensor is None else tensor.numel()
        dtype = "" if tensor is None else str(tensor.dtype).removeprefix("torch.")
        env.board.collective(name, numel, dtype)
        env.collectives[name] = env.collectives.get(name, 0) + 1
        return original(*args, **kwargs)

    return issue

"""Notes every collective that Python code issues: in the flight recorder, and counted by name.

Wrapped are the functions of ``torch.distributed``, which FSDP looks up when it calls them.
What DDP's C++ reducer issues is not seen.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from fsdpfuzz.expect import collective as collective_text
from fsdpfuzz.ranks._env import RankEnv

# Function -> (name to note it by, position and name of the argument with this rank's input).
# Newer torch has other names for the same collectives, so the established one is noted.
_FUNCTIONS: dict[str, tuple[str, int, str]] = {
    "all_reduce": ("all_reduce", 0, "tensor"),
    "all_reduce_coalesced": ("all_reduce", 0, "tensors"),
    "reduce": ("reduce", 0, "tensor"),
    "broadcast": ("broadcast", 0, "tensor"),
    "all_gather": ("all_gather", 1, "tensor"),
    "all_gather_coalesced": ("all_gather", 1, "input_tensor_list"),
    "all_gather_into_tensor": ("all_gather_into_tensor", 1, "input_tensor"),
    "all_gather_single": ("all_gather_into_tensor", 1, "input_tensor"),
    "_all_gather_base": ("all_gather_into_tensor", 1, "input_tensor"),
    "gather": ("gather", 0, "tensor"),
    "scatter": ("scatter", 0, "tensor"),
    "reduce_scatter": ("reduce_scatter", 1, "input_list"),
    "reduce_scatter_tensor": ("reduce_scatter_tensor", 1, "input"),
    "reduce_scatter_single": ("reduce_scatter_tensor", 1, "input"),
    "_reduce_scatter_base": ("reduce_scatter_tensor", 1, "input"),
    "all_to_all": ("all_to_all", 1, "input_tensor_list"),
    "all_to_all_single": ("all_to_all_single", 1, "input"),
    "barrier": ("barrier", -1, ""),
}


# Of each thread: on a GPU autograd runs the hooks of a backward in a thread of its own.
class _Depth(threading.local):
    """Collectives call each other; only the outermost is noted."""

    inside = False


def note_collectives(env: RankEnv) -> None:
    """Wraps the functions for the life of this process."""
    depth = _Depth()
    for name, (noted, position, argument) in _FUNCTIONS.items():
        original = getattr(distributed_c10d, name, None)
        if original is None:
            continue
        wrapped = _noting(original, env, depth, noted, position, argument)
        # Both: torch/distributed/__init__.py copies the names with ``import *``. FSDP calls those
        # of ``torch.distributed``, the object collectives those of their own module.
        setattr(distributed_c10d, name, wrapped)
        if hasattr(dist, name):
            setattr(dist, name, wrapped)


def _noting(
    original: Callable[..., Any],
    env: RankEnv,
    depth: _Depth,
    noted: str,
    position: int,
    argument: str,
) -> Callable[..., Any]:
    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        # all_gather_into_tensor calls all_gather_single (torch 2.13), broadcast_object_list
        # broadcast: one call of FSDP's would count twice.
        if depth.inside:
            return original(*args, **kwargs)
        given = args[position] if 0 <= position < len(args) else kwargs.get(argument)
        numel, dtype = _size(given)
        env.collectives[noted] = env.collectives.get(noted, 0) + 1
        # Two words, so that a promise names no variant: torch 2.13 says all_gather_single where
        # older ones say all_gather_into_tensor.
        env.issued.append(collective_text("_".join(noted.split("_")[:2]), dtype, numel))
        # Before the call: of one that never returns, or ends the process, this is all that is left.
        returned = env.flight.collective(noted, numel, dtype)
        depth.inside = True
        try:
            return original(*args, **kwargs)
        finally:
            depth.inside = False
            returned()

    return collective


def _size(given: object) -> tuple[int, str]:
    if isinstance(given, Tensor):
        return given.numel(), str(given.dtype).removeprefix("torch.")
    if isinstance(given, list | tuple) and given and isinstance(given[0], Tensor):
        return sum(tensor.numel() for tensor in given), str(given[0].dtype).removeprefix("torch.")
    return 0, "-"

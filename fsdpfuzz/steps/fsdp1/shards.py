"""What a rank holds under fsdp1: parts of flat parameters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp._common_utils import clean_tensor_name


def info(flat: Any, name: str, prefixed: bool) -> Any:
    """Where this rank's part of a parameter lies: in its unit's flat shard, and in itself.

    ``prefixed`` says that wrappers inside the unit put parts into the names.
    """
    names = [clean_tensor_name(fqn) for fqn in flat._fqns] if prefixed else flat._fqns
    return flat._shard_param_infos[names.index(name)]


# torch's `_ShardParamInfo` has None for offset and size where this rank has no element. A flat
# parameter has elements as they lie in memory. Read by ``data``: what FSDP made under inference
# mode, and gave other data since, has no version for views to share.
def value(held: Tensor, info: Any, orig: bool, order: Sequence[int] = ()) -> Tensor:
    """What this rank holds of a parameter.

    ``held`` is what the optimizer has: the flat parameter, or with ``orig`` the original one.
    ``order`` has the dimensions of one that is not contiguous, from the outermost in memory to the
    innermost.
    """
    if orig:
        return permuted(held.data, order).flatten() if order else held.data.flatten()
    return held.data.narrow(0, info.offset_in_shard or 0, info.numel_in_shard or 0)


def gradient(
    held: Tensor, info: Any, orig: bool, lacking: bool, order: Sequence[int] = ()
) -> Tensor:
    """What this rank holds of its gradient; zeros where it may lack one."""
    grad: Any = torch.zeros_like(held) if lacking and held.grad is None else held.grad
    if orig:
        return permuted(grad.data, order).flatten() if order else grad.data.flatten()
    return grad.data.narrow(0, info.offset_in_shard or 0, info.numel_in_shard or 0)


def permuted(held: Tensor, order: Sequence[int]) -> Tensor:
    """An original parameter, or its gradient, with its dimensions in the order of memory.

    One that is cut has a single dimension, and lies so already.
    """
    return held.permute(*order) if held.dim() == len(order) else held


def same_part(whole: Tensor, info: Any, order: Sequence[int] = ()) -> Tensor:
    """The same part of the whole tensor."""
    if order:
        whole = whole.permute(*order)
    return whole.flatten().narrow(0, info.intra_param_start_idx or 0, info.numel_in_shard or 0)


def places(shape: Sequence[int], info: Any, order: Sequence[int] = ()) -> list[tuple[int, ...]]:
    """Where the elements of this rank's part lie in a parameter of that shape; more may follow."""
    if order:
        inside = product(*(range(shape[dim]) for dim in order))
        found = [tuple(index for _, index in sorted(zip(order, at, strict=True))) for at in inside]
        return found[info.intra_param_start_idx or 0 :]
    return [*product(*map(range, shape))][info.intra_param_start_idx or 0 :]

"""What units are told of micro-batches that do not synchronise."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.distributed.fsdp import FSDPModule


def tell(
    model: nn.Module,
    value: bool,
    all_reduce_only: bool = False,
    keep_whole: bool = False,
    not_last: bool = False,
) -> None:
    """Every unit, with False before them and with True afterwards."""
    for unit in model.modules():
        if isinstance(unit, FSDPModule):
            if all_reduce_only:
                unit.set_requires_all_reduce(value)
            else:
                unit.set_requires_gradient_sync(value)
            if keep_whole:
                unit.set_reshard_after_backward(value)
            if not_last:
                unit.set_is_last_backward(value)


def tell_some(
    units: Sequence[FSDPModule],
    value: bool,
    all_reduce_only: bool = False,
    keep_whole: bool = False,
) -> None:
    """These units, and none that lie in them."""
    for unit in units:
        if all_reduce_only:
            unit.set_requires_all_reduce(value, recurse=False)
        else:
            unit.set_requires_gradient_sync(value, recurse=False)
        if keep_whole:
            unit.set_reshard_after_backward(value, recurse=False)

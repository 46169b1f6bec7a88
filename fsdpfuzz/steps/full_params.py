"""Whole parameters, as one tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from fsdpfuzz.steps.names import parameters

SCALE = 0.75
"""By which what is written is multiplied."""


@torch.no_grad()
def taken(named: Mapping[str, nn.Parameter], written: Sequence[str] = ()) -> Tensor:
    """The values of all of them, by name; then some are scaled."""
    values = torch.cat([named[name].flatten() for name in sorted(named)])
    for name in written:
        named[name].mul_(SCALE)
    return values


def summoned(
    model: nn.Module, prefixed: bool, written: Sequence[str], offload: bool = False
) -> Tensor:
    """fsdp1's by ``summon_full_params``; what is ``written`` is scaled and kept."""
    with FSDP.summon_full_params(model, writeback=len(written) > 0, offload_to_cpu=offload):
        return taken(parameters(model, prefixed), written)


def unsharded(model: nn.Module, prefixed: bool, waits: bool = False) -> Tensor:
    """fsdp2's by hand; ``waits`` gathers all units before it waits for any."""
    units = [unit for unit in model.modules() if isinstance(unit, FSDPModule)]
    for handle in [unit.unshard(async_op=waits) for unit in units]:
        if handle is not None:
            handle.wait()
    values = taken(parameters(model, prefixed))
    for unit in units:
        unit.reshard()
    return values

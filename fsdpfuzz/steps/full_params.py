"""Whole parameters by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.utils._pytree import tree_map_only

from fsdpfuzz.steps.names import parameters
from fsdpfuzz.steps.rank0 import from_rank0
from fsdpfuzz.steps.rescale import scale
from fsdpfuzz.steps.shards import gradient


# Copies: what is whole is freed when its unit is resharded.
def taken(
    named: Mapping[str, nn.Parameter], written: Sequence[str] = (), grads: bool = False
) -> dict[str, Any]:
    """Copies of all of them, beside them with ``grads`` those of trained ones; some are scaled."""
    values: dict[str, Any] = {name: p.detach().clone() for name, p in named.items()}
    if grads:
        for name, p in named.items():
            if p.requires_grad:
                values[name] = {"value": values[name], "grad": gradient(p, True).clone()}
    scale(named, written)
    return values


def summoned(
    model: nn.Module,
    prefixed: bool,
    written: Sequence[str],
    grads: bool = False,
    **options: bool,
) -> dict[str, Any]:
    """fsdp1's by ``summon_full_params`` with these options; ``written`` is scaled and kept."""
    with FSDP.summon_full_params(model, writeback=len(written) > 0, **options):
        return taken(parameters(model, prefixed), written, grads)


# What rank 0 alone has whole the others have in parts, or as flat parameters.
def shared(found: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """What rank 0 has found, on the CPU of each rank."""
    whole: dict[str, Any] = from_rank0(tree_map_only(Tensor, Tensor.cpu, found), device)
    return whole


def unsharded(model: nn.Module, prefixed: bool, waits: bool = False) -> dict[str, Any]:
    """fsdp2's by hand; ``waits`` gathers all units before it waits for any."""
    units = [unit for unit in model.modules() if isinstance(unit, FSDPModule)]
    for unit in () if waits else units:
        unit.unshard()
    for handle in [unit.unshard(async_op=True) for unit in units] if waits else ():
        if handle is not None:
            handle.wait()
    values = taken(parameters(model, prefixed))
    for unit in units:
        unit.reshard()
    return values

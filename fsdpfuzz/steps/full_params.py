"""Whole parameters by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.utils._pytree import tree_map_only

from fsdpfuzz.steps.names import parameters
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
    offload: bool = False,
    grads: bool = False,
    rank0: bool = False,
) -> dict[str, Any]:
    """fsdp1's by ``summon_full_params``; what is ``written`` is scaled and kept.

    With ``rank0`` other ranks have none, and rank 0's lie on the CPU.
    """
    with FSDP.summon_full_params(
        model,
        writeback=len(written) > 0,
        offload_to_cpu=offload,
        rank0_only=rank0,
        with_grads=grads,
    ):
        if rank0 and dist.get_rank() > 0:
            return {}
        found = taken(parameters(model, prefixed), written, grads)
        return tree_map_only(Tensor, Tensor.cpu, found) if rank0 else found


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

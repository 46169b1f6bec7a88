"""Whole parameters by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from fsdpfuzz.steps.names import parameters
from fsdpfuzz.steps.rescale import scale


# Copies: what is whole is freed when its unit is resharded.
def taken(named: Mapping[str, nn.Parameter], written: Sequence[str] = ()) -> dict[str, Tensor]:
    """Copies of all of them; then some are scaled."""
    values = {name: p.detach().clone() for name, p in named.items()}
    scale(named, written)
    return values


def summoned(
    model: nn.Module, prefixed: bool, written: Sequence[str], offload: bool = False
) -> dict[str, Tensor]:
    """fsdp1's by ``summon_full_params``; what is ``written`` is scaled and kept."""
    with FSDP.summon_full_params(model, writeback=len(written) > 0, offload_to_cpu=offload):
        return taken(parameters(model, prefixed), written)


def unsharded(model: nn.Module, prefixed: bool, waits: bool = False) -> dict[str, Tensor]:
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

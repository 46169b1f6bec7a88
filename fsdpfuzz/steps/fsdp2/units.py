"""The units that fsdp2 made, and whether they are sharded."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._common_utils import clean_tensor_name
from torch.distributed.tensor import DTensor


def units(model: nn.Module) -> Iterator[tuple[str, FSDPModule]]:
    """FQN in the plain model and module of each; of several modules the first."""
    seen = set()
    for name, module in model.named_modules():
        # Modules that were given to one fully_shard together have one state.
        if isinstance(module, FSDPModule) and (state := module._get_fsdp_state()) not in seen:
            seen.add(state)
            yield clean_tensor_name(f"{name}.").rstrip("."), module


# A unit that is whole registers plain parameters in place
# of its DTensors (``FSDPParam.to_unsharded``), or those of one axis in place of those of two.
def unsharded(model: nn.Module, unmanaged: Collection[str] = ()) -> list[str]:
    """Parameters of units that are not registered as DTensors."""
    found = []
    for name, p in model.named_parameters():
        plain = clean_tensor_name(name)
        if not is_sharded(p) and plain not in unmanaged:
            found.append(plain)
    return found


def is_sharded(p: nn.Parameter) -> bool:
    """Whether FSDP's axis is one of those that a parameter lies on."""
    return isinstance(p, DTensor) and p.device_mesh.mesh_dim_names != ("tp",)


def names(model: nn.Module) -> list[str]:
    """FQNs of the units, sorted."""
    return sorted(name for name, _ in units(model))


def reshard(model: nn.Module) -> None:
    """Shards every unit that is whole."""
    for unit in model.modules():
        if isinstance(unit, FSDPModule):
            unit.reshard()

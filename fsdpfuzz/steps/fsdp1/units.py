"""The units that fsdp1 made, and whether they are sharded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp._common_utils import clean_tensor_name


def units(model: nn.Module) -> Iterator[tuple[str, FSDP]]:
    """FQN in the plain model and module of each."""
    for name, module in model.named_modules():
        if isinstance(module, FSDP):
            # It takes off "_fsdp_wrapped_module." with its dot, which a name that ends there lacks.
            yield clean_tensor_name(f"{name}.").rstrip("."), module


# A flat parameter is the same object all along: FSDP exchanges its ``data``, and frees or fills the
# storage of ``_full_param_padded`` (``FlatParamHandle.unshard``, ``reshard``).
def unsharded(model: nn.Module) -> list[str]:
    """Units whose flat parameter is not this rank's shard, or whose whole storage lives on."""
    found = []
    for name, unit in units(model):
        handle = unit._handle
        if handle is None or not handle.uses_sharded_strategy:
            continue
        flat = handle.flat_param
        local, whole = (
            getattr(flat, "_local_shard", None),
            getattr(flat, "_full_param_padded", None),
        )
        if local is None:
            continue  # its forward never ran, so nothing was ever gathered
        # FSDP keeps the tensor and frees its storage.
        alive = whole is not None and whole.untyped_storage().size() > 0
        if alive or flat.data.shape != local.shape:
            found.append(name)
    return found


def names(model: nn.Module) -> list[str]:
    """FQNs of the units, sorted."""
    return sorted(name for name, _ in units(model))


def names_of(model: nn.Module, calls: list[tuple[Any, ...]]) -> list[str]:
    """FQNs of the units that were the first arguments of some calls, sorted."""
    found = {unit: name for name, unit in units(model)}
    return sorted(found[call[0]] for call in calls)

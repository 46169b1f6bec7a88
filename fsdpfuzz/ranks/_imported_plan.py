"""Which units a ``shard(model, mesh)`` of your own has made, read back as a plan."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fsdpfuzz.case import Fsdp1Plan, Fsdp1Unit, Fsdp2Plan, Fsdp2Unit, Plan
from fsdpfuzz.case.units import options_read
from fsdpfuzz.steps.fsdp1 import units as units1
from fsdpfuzz.steps.fsdp2 import units as units2

MAX_UNITS = 64


class UnreadableError(Exception):
    """What was made cannot be said as a plan; in words."""


def plan_of(model: nn.Module) -> Plan:
    """The units of a model with what decides how they are compared: dtypes, and what is flat."""
    first = list(units1.units(model))
    second: list[tuple[str, Any]] = list(units2.units(model))
    if first and second:
        raise UnreadableError("uses FullyShardedDataParallel and fully_shard together")
    if not first and not second:
        raise UnreadableError("made no unit: call fully_shard or FullyShardedDataParallel in it")
    if len(first) + len(second) > MAX_UNITS:
        raise UnreadableError(f"made {len(first) + len(second)} units, at most {MAX_UNITS}")
    if first:
        return Fsdp1Plan(units=tuple(_first(path, unit) for path, unit in first))
    return Fsdp2Plan(units=tuple(_second(path, unit) for path, unit in second))


def _first(path: str, unit: Any) -> Fsdp1Unit:
    name = unit.sharding_strategy.name
    if name not in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"):
        raise UnreadableError(f"uses {name}, which --as-is cannot check yet")
    policy = unit.mixed_precision
    dtypes = {} if policy is None else {"buffer": _name(policy.buffer_dtype), **_dtypes(policy)}
    told = {
        "strategy": name,
        "originals": bool(unit._use_orig_params),
        "on_cpu": unit._handle is not None and bool(unit._handle._offload_params),
        "dtypes": dtypes,
    }
    return Fsdp1Unit(path=path, **options_read(Fsdp1Unit, told))


def _second(path: str, unit: Any) -> Fsdp2Unit:
    state = unit._get_fsdp_state()
    group = state._fsdp_param_group
    if len(getattr(state, "_modules", ())) > 1:
        raise UnreadableError("makes one unit of several modules, which --as-is cannot check yet")
    policy = state._mp_policy
    if group is not None and group.mesh_info.mesh.ndim != 1:
        raise UnreadableError("uses a mesh of its own with replicas: use the one it is given")
    offloads = group is not None and type(group.offload_policy).__name__ == "CPUOffloadPolicy"
    dtypes = {"output": _name(policy.output_dtype), **_dtypes(policy)}
    told = {"originals": True, "on_cpu": offloads, "dtypes": dtypes}
    return Fsdp2Unit(path=path, **options_read(Fsdp2Unit, told))


def _dtypes(policy: Any) -> dict[str, Any]:
    return {"param": _name(policy.param_dtype), "reduce": _name(policy.reduce_dtype)}


def _name(dtype: torch.dtype | None) -> Any:
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.")
    if name not in ("float32", "float16", "bfloat16"):
        raise UnreadableError(f"computes or reduces in {name}, which cannot be checked")
    return name

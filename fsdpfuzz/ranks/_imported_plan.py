"""Which units a ``shard(model, mesh)`` of your own has made, read back as a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp._common_utils import clean_tensor_name
from torch.distributed.tensor import DTensor

from fsdpfuzz.case import Fsdp1Plan, Fsdp1Unit, Fsdp2Plan, Fsdp2Unit, Plan
from fsdpfuzz.case.paths import innermost
from fsdpfuzz.case.units import HYBRID, options_read
from fsdpfuzz.ranks._imported_watch import module_names, names_of
from fsdpfuzz.steps.fsdp1 import units as units1
from fsdpfuzz.steps.fsdp2 import units as units2
from fsdpfuzz.steps.names import parameters

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
    for name, *others in module_names(model):
        if others and isinstance(model.get_submodule(name), FSDP):
            names = (clean_tensor_name(f"{n}.").rstrip(".") for n in (name, others[0]))
            own, other = map(repr, names)
            raise UnreadableError(
                f"puts a FullyShardedDataParallel into two places, {own} and {other}, which cannot "
                "be checked yet: make no unit of that module"
            )
    if len(first) + len(second) > MAX_UNITS:
        raise UnreadableError(f"made {len(first) + len(second)} units, at most {MAX_UNITS}")
    beside = {path: _beside(model, unit) for path, unit in second}
    left = _ignored(model, [unit for _, unit in first], beside)
    if first:
        return Fsdp1Plan(units=tuple(_first(path, unit, left) for path, unit in first))
    return Fsdp2Plan(units=tuple(_second(path, u, beside[path], left) for path, u in second))


Left = Mapping[str, tuple[str, ...]]


def _ignored(model: nn.Module, first: Sequence[Any], second: Left) -> Left:
    """By the FQN of a unit what of its parameters it was told to leave alone.

    ``first`` are the units of fsdp1; ``second`` has those of fsdp2 by their FQN, with their other
    modules. :class:`UnreadableError` for a parameter with several names, of which a case cannot
    say so.
    """
    several = {clean_tensor_name(names[0]) for names in names_of(model) if len(names) > 1}
    ignored = {id(p) for unit in first for p in unit._ignored_params}
    units = {path: path for path, _ in units1.units(model)}
    units |= {module: path for path, others in second.items() for module in (path, *others)}
    found: dict[str, list[str]] = {}
    for name, p in parameters(model, True).items():
        # fsdp2 makes a DTensor of each that it manages.
        left = id(p) in ignored if first else not isinstance(p, DTensor)
        module = innermost(name.rpartition(".")[0], units) if left else None
        if module is not None and name in several:
            raise UnreadableError(f"ignores {name!r}, which has other names: not checked yet")
        if module is not None:
            found.setdefault(units[module], []).append(name)
    return {unit: tuple(names) for unit, names in found.items()}


def _beside(model: nn.Module, unit: Any) -> tuple[str, ...]:
    """The modules of a unit of fsdp2 but the first, by their FQN in the plain model."""
    # Their order is that of the model, whatever order they were given in.
    held = {id(module) for module in unit._get_fsdp_state()._modules}
    paths = [
        clean_tensor_name(f"{n}.").rstrip(".") for n, m in model.named_modules() if id(m) in held
    ]
    return tuple(paths[1:])


def mesh_of(model: nn.Module) -> tuple[int, int] | None:
    """Replicas, and ranks that each of them is sharded over; None where there are no replicas."""
    found = {_hybrid(unit) for _, unit in units1.units(model)}
    found |= {_two_axes(unit) for _, unit in units2.units(model)}
    sizes = found - {None}
    if len(sizes) > 1 or (sizes and any(units2.units(model)) and None in found):
        raise UnreadableError("shards units over several meshes, which cannot be checked yet")
    return next(iter(sizes), None)


def _strategy(unit: Any) -> str:
    """What a unit of fsdp1 was asked for, as far as that can be told."""
    name: str = unit.sharding_strategy.name
    # Replicas of one rank each: ``_init_core_state`` in fsdp/_init_utils.py goes by the group of
    # the shards, and puts NO_SHARD in the place of HYBRID_SHARD.
    alone = unit.world_size == 1 and dist.get_world_size() > 1
    return "HYBRID_SHARD" if name == "NO_SHARD" and alone else name


def _hybrid(unit: Any) -> tuple[int, int] | None:
    if _strategy(unit) not in HYBRID:
        return None
    # ``process_group`` of a hybrid unit is that of its shards
    # (torch/distributed/fsdp/_init_utils.py, ``_init_process_group_state_for_hybrid_shard``).
    ranks = dist.get_process_group_ranks(unit.process_group)
    return _sizes(ranks, len(ranks))


def _two_axes(unit: Any) -> tuple[int, int] | None:
    group = unit._get_fsdp_state()._fsdp_param_group
    if group is None or group.mesh_info.mesh.ndim == 1:
        return None
    # The tensor of ranks: a mesh tells the size of an axis, but not which ranks lie along it.
    mesh = group.mesh_info.mesh.mesh
    return _sizes(mesh[(mesh == dist.get_rank()).any(dim=1)].flatten().tolist(), mesh.shape[1])


def _sizes(ranks: list[int], shard: int) -> tuple[int, int]:
    """Of the mesh in which these ranks hold the shards of one replica."""
    world, start = dist.get_world_size(), ranks[0]
    if start % shard or ranks != list(range(start, start + shard)):
        raise UnreadableError(f"shards over ranks {ranks}, which are not one after the other")
    return world // shard, shard


def _first(path: str, unit: Any, left: Left) -> Fsdp1Unit:
    policy = unit.mixed_precision
    dtypes = {} if policy is None else {"buffer": _name(policy.buffer_dtype), **_dtypes(policy)}
    told = {
        "strategy": _strategy(unit),
        "originals": bool(unit._use_orig_params),
        "on_cpu": unit._handle is not None and bool(unit._handle._offload_params),
        "dtypes": dtypes,
        "left_alone": left.get(path, ()),
    }
    return Fsdp1Unit(path=path, **options_read(Fsdp1Unit, told))


def _second(path: str, unit: Any, beside: tuple[str, ...], left: Left) -> Fsdp2Unit:
    state = unit._get_fsdp_state()
    group = state._fsdp_param_group
    policy = state._mp_policy
    offloads = group is not None and type(group.offload_policy).__name__ == "CPUOffloadPolicy"
    dtypes = {"output": _name(policy.output_dtype), **_dtypes(policy)}
    told = {
        "originals": True,
        "on_cpu": offloads,
        "dtypes": dtypes,
        "left_alone": left.get(path, ()),
    }
    return Fsdp2Unit(path=path, grouped=beside, **options_read(Fsdp2Unit, told))


def _dtypes(policy: Any) -> dict[str, Any]:
    return {"param": _name(policy.param_dtype), "reduce": _name(policy.reduce_dtype)}


def _name(dtype: torch.dtype | None) -> Any:
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.")
    if name not in ("float32", "float16", "bfloat16"):
        raise UnreadableError(f"computes or reduces in {name}, which cannot be checked")
    return name

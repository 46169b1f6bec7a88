"""Adapter for ``torch.distributed.fsdp.fully_shard``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.tensor import DTensor, Shard

from fsdpfuzz.ranks._activation import place
from fsdpfuzz.ranks._env import RankEnv
from fsdpfuzz.ranks._names import clean
from fsdpfuzz.ranks._shard import Piece, dtype_of, grads_held, storage_bytes, whole
from fsdpfuzz.spec import Checkpoint, Fsdp2Plan, Fsdp2Unit


class ShardedFsdp2:
    """A model on whose modules ``fully_shard`` was called."""

    def __init__(self, model: nn.Module, env: RankEnv) -> None:
        self.model = model
        self._env = env
        self._units = {
            clean(name): module
            for name, module in model.named_modules()
            if isinstance(module, FSDPModule)
        }
        self.units = tuple(self._units)
        self._owned = self._find_owned()
        self.pieces = tuple(self._find_pieces())

    @contextmanager
    def synchronised(self, enabled: bool) -> Iterator[None]:
        """Sets ``set_requires_gradient_sync`` of all units for the time being."""
        for unit in self._units.values():
            unit.set_requires_gradient_sync(enabled)
        try:
            yield
        finally:
            for unit in self._units.values():
                unit.set_requires_gradient_sync(True)

    def unsharded(self) -> tuple[str, ...]:
        """Units one of whose parameters is not registered as a DTensor."""
        return tuple(
            path
            for path, names in self._owned.items()
            if any(not isinstance(module._parameters.get(name), DTensor) for module, name in names)
        )

    def shards(self) -> bool:
        """Always: fsdp2 has no unsharded strategy."""
        return bool(self._units)

    def resharded(self, modules: Sequence[object]) -> dict[str, int]:
        """Nothing is counted: groups reshard at the end of backward at the latest."""
        return {}

    def held_bytes(self) -> int:
        """Storages of the shards, of parameters that are whole, and of what no unit manages."""
        tensors: list[torch.Tensor] = list(self.model.parameters())
        for held in self._held():
            tensors += [held.sharded_param, *held.all_gather_outputs]
            if hasattr(held, "_unsharded_param"):
                tensors.append(held._unsharded_param)
        return storage_bytes(tensors)

    def grad_bytes(self) -> int:
        """As `grads_held`, and gradients that are still whole."""
        whole_ones = [
            grad
            for held in self._held()
            for grad in (
                held.unsharded_accumulated_grad,
                getattr(getattr(held, "_unsharded_param", None), "grad", None),
            )
            if grad is not None
        ]
        return grads_held(self.pieces) + storage_bytes(whole_ones)

    def _held(self) -> Iterator[FSDPParam]:
        for unit in self._units.values():
            state = unit._get_fsdp_state()
            for group in getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]:
                if group is not None:
                    yield from group.fsdp_params

    def _find_owned(self) -> dict[str, list[tuple[nn.Module, str]]]:
        owned: dict[str, list[tuple[nn.Module, str]]] = {path: [] for path in self._units}
        for name, module in self.model.named_modules():
            unit = _owner(clean(name), self.units)
            for key, parameter in module._parameters.items():
                if unit is not None and isinstance(parameter, DTensor):
                    owned[unit].append((module, key))
        return owned

    def _find_pieces(self) -> Iterator[Piece]:
        for name, parameter in self.model.named_parameters():
            fqn = clean(name)
            if not isinstance(parameter, DTensor):
                yield whole(fqn, parameter)
                continue
            dim = next((p.dim for p in parameter.placements if isinstance(p, Shard)), 0)
            group = parameter.device_mesh.size()
            chunk = -(-parameter.shape[dim] // group)
            start = min(parameter.device_mesh.get_local_rank() * chunk, parameter.shape[dim])
            length = parameter._local_tensor.shape[dim]
            yield Piece(
                fqn,
                _owner(fqn.rpartition(".")[0], self.units),
                parameter,
                offset=0,
                numel=parameter._local_tensor.numel(),
                start=start,
                dim=dim,
                length=length,
            )


def wrap(
    model: nn.Module, plan: Fsdp2Plan, checkpoints: tuple[Checkpoint, ...], env: RankEnv
) -> ShardedFsdp2:
    """Applies ``fully_shard`` innermost first; raises whatever FSDP raises."""
    mesh = init_device_mesh(env.device.type, (env.world_size,))
    paths = {unit.path for unit in plan.units}
    ignored = {
        unit.path: {
            parameter
            for path in unit.ignored
            for parameter in model.get_submodule(path).parameters()
        }
        for unit in plan.units
    }
    for checkpoint in checkpoints:
        if checkpoint.path not in paths:
            model = place(model, checkpoint, inside_unit=False)
    for unit in sorted(plan.units, key=_depth, reverse=True):
        here = [checkpoint for checkpoint in checkpoints if checkpoint.path == unit.path]
        for checkpoint in here:
            if checkpoint.side == "inside":
                model = place(model, checkpoint, inside_unit=True)
        fully_shard(model.get_submodule(unit.path), mesh=mesh, **_options(unit, ignored[unit.path]))
        for checkpoint in here:
            if checkpoint.side == "around":
                model = place(model, checkpoint, inside_unit=False)
    return ShardedFsdp2(model, env)


def _options(unit: Fsdp2Unit, ignored: set[nn.Parameter]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if unit.reshard_after_forward is not None:
        options["reshard_after_forward"] = unit.reshard_after_forward
    if unit.precision is not None:
        options["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=dtype_of(unit.precision.param),
            reduce_dtype=dtype_of(unit.precision.reduce),
        )
    if unit.cpu_offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
    if ignored:
        options["ignored_params"] = ignored
    return options


def _owner(path: str, units: tuple[str, ...]) -> str | None:
    """The innermost unit that contains the module at ``path``."""
    holding = [unit for unit in units if not unit or path == unit or path.startswith(f"{unit}.")]
    return max(holding, key=len) if holding else None


def _depth(unit: Fsdp2Unit) -> int:
    return len(unit.path.split(".")) if unit.path else 0

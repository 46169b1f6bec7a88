"""Adapter for ``torch.distributed.fsdp.FullyShardedDataParallel``."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import CustomPolicy, ModuleWrapPolicy

from fsdpfuzz.errors import ContractError
from fsdpfuzz.ranks._activation import place
from fsdpfuzz.ranks._build import NODE_CLASSES
from fsdpfuzz.ranks._env import RankEnv
from fsdpfuzz.ranks._names import clean, replace
from fsdpfuzz.ranks._shard import Piece, dtype_of, grads_held, storage_bytes, whole
from fsdpfuzz.spec import Checkpoint, Fsdp1Plan, Fsdp1Unit, Precision

_STORED = ("_local_shard", "_full_param_padded", "_full_prec_full_param_padded", "_mp_shard")
"""Where a flat parameter keeps storage; freed ones have size 0."""


class ShardedFsdp1:
    """A model wrapped by fsdp1."""

    def __init__(self, model: nn.Module, env: RankEnv) -> None:
        self.model = model
        self._env = env
        self._units = {
            clean(name): module
            for name, module in model.named_modules()
            if isinstance(module, FullyShardedDataParallel)
        }
        self.units = tuple(self._units)
        self.pieces = tuple(self._find_pieces())
        for unit in self._units.values():
            if unit._handle is not None and not unit._handle._use_orig_params:
                weakref.finalize(unit, _forget_views, unit._handle.flat_param).atexit = False

    @contextmanager
    def synchronised(self, enabled: bool) -> Iterator[None]:
        """``no_sync`` of every outermost unit, or nothing."""
        with ExitStack() as stack:
            if not enabled:
                for path, unit in self._units.items():
                    if not any(_contains(other, path) for other in self._units):
                        stack.enter_context(unit.no_sync())
            yield

    def unsharded(self) -> tuple[str, ...]:
        """Units whose flat parameter is not this rank's shard, or whose full storage lives on."""
        return tuple(path for path, unit in self._units.items() if _is_unsharded(unit))

    def shards(self) -> bool:
        """False under ``NO_SHARD`` throughout."""
        return any(
            handle is not None and handle.uses_sharded_strategy
            for handle in (unit._handle for unit in self._units.values())
        )

    def resharded(self, modules: Sequence[object]) -> dict[str, int]:
        """By the paths of the units."""
        paths = {id(unit): path for path, unit in self._units.items()}
        return dict(Counter(paths.get(id(module), "(unknown)") for module in modules))

    def held_bytes(self) -> int:
        """Storages of the flat parameters, whole or sharded, and of what no unit manages."""
        tensors: list[torch.Tensor] = list(self.model.parameters())
        for unit in self._units.values():
            if unit._handle is not None:
                flat = unit._handle.flat_param
                found = (getattr(flat, name, None) for name in _STORED)
                tensors += [flat, *(tensor for tensor in found if tensor is not None)]
        return storage_bytes(tensors)

    def grad_bytes(self) -> int:
        """See `grads_held`."""
        return grads_held(self.pieces)

    def _find_pieces(self) -> Iterator[Piece]:
        managed: set[int] = set()
        for path, unit in self._units.items():
            handle = unit._handle
            if handle is None:
                continue
            flat = handle.flat_param
            managed.add(id(flat))
            infos = zip(flat._fqns, flat._shard_param_infos, strict=True)
            for i, (name, info) in enumerate(infos):
                fqn = clean(f"{path}.{name}" if path else name)
                held: nn.Parameter = flat
                offset = info.offset_in_shard or 0
                if handle._use_orig_params:
                    if flat._params is None:
                        raise ContractError(f"fsdp1 keeps no original parameters in {path!r}")
                    held, offset = flat._params[i], 0
                    managed.add(id(held))
                numel = info.numel_in_shard or 0
                start = info.intra_param_start_idx or 0
                yield Piece(fqn, path, held, offset, numel, start)
        for name, parameter in self.model.named_parameters():
            if id(parameter) not in managed and "_flat_param" not in name:
                yield whole(clean(name), parameter)


def _forget_views(flat: Any) -> None:
    """Takes the views of a flat parameter, whose unit is gone, off the modules.

    A view holds the flat parameter, which holds the modules, which hold the view; the first
    link is in C++, where Python's collector does not see it, and nothing of it would be freed.
    """
    for info in (*flat._param_infos, *flat._shared_param_infos):
        info.module.__dict__.pop(info.param_name, None)


def wrap(
    model: nn.Module, plan: Fsdp1Plan, checkpoints: tuple[Checkpoint, ...], env: RankEnv
) -> ShardedFsdp1:
    """Wraps as the plan says; raises whatever FSDP raises."""
    paths = {unit.path for unit in plan.units}
    ignored = {
        unit.path: [model.get_submodule(path) for path in unit.ignored] for unit in plan.units
    }
    if plan.wrap == "nested":
        for checkpoint in checkpoints:
            if checkpoint.path not in paths:
                model = place(model, checkpoint, inside_unit=False)
        for unit in sorted(plan.units, key=_depth, reverse=True):
            model = _wrap_one(model, unit, checkpoints, ignored[unit.path], env)
        return ShardedFsdp1(model, env)
    for checkpoint in checkpoints:
        inside = checkpoint.side == "inside" and checkpoint.path in paths
        if checkpoint.path or inside:
            model = place(model, checkpoint, inside_unit=inside)
    policy = _classes(plan) if plan.wrap == "module_classes" else _custom(model, plan, checkpoints)
    root = next(unit for unit in plan.units if not unit.path)
    model = FullyShardedDataParallel(
        model, auto_wrap_policy=policy, **_options(root, env, ignored[""])
    )
    for checkpoint in checkpoints:
        if not checkpoint.path and checkpoint.side == "around":
            model = place(model, checkpoint, inside_unit=False)
    return ShardedFsdp1(model, env)


def _wrap_one(
    model: nn.Module,
    unit: Fsdp1Unit,
    checkpoints: tuple[Checkpoint, ...],
    ignored: list[nn.Module],
    env: RankEnv,
) -> nn.Module:
    here = [checkpoint for checkpoint in checkpoints if checkpoint.path == unit.path]
    for checkpoint in here:
        if checkpoint.side == "inside":
            model = place(model, checkpoint, inside_unit=True)
    wrapped = FullyShardedDataParallel(
        model.get_submodule(unit.path), **_options(unit, env, ignored)
    )
    model = replace(model, unit.path, wrapped)
    for checkpoint in here:
        if checkpoint.side == "around":
            model = place(model, checkpoint, inside_unit=False)
    return model


def _classes(plan: Fsdp1Plan) -> ModuleWrapPolicy:
    return ModuleWrapPolicy({cls for kind in plan.classes for cls in NODE_CLASSES[kind]})


def _custom(model: nn.Module, plan: Fsdp1Plan, checkpoints: tuple[Checkpoint, ...]) -> CustomPolicy:
    around = {
        c.path for c in checkpoints if c.side == "around" and c.kind in ("wrapper", "offload")
    }
    chosen: dict[int, dict[str, Any]] = {}
    for unit in plan.units:
        if unit.path:
            module = model.get_submodule(unit.path)
            if unit.path in around:
                module = module.get_submodule("_checkpoint_wrapped_module")
            chosen[id(module)] = _overrides(unit)
    return CustomPolicy(lambda module: chosen.get(id(module), False))


def _overrides(unit: Fsdp1Unit) -> dict[str, Any]:
    return {
        "sharding_strategy": ShardingStrategy[unit.sharding],
        "backward_prefetch": _prefetch(unit),
        "forward_prefetch": unit.forward_prefetch,
        "cpu_offload": CPUOffload(offload_params=unit.cpu_offload),
        "mixed_precision": _precision(unit.precision),
    }


def _options(unit: Fsdp1Unit, env: RankEnv, ignored: list[nn.Module]) -> dict[str, Any]:
    options = _overrides(unit) | {
        "use_orig_params": unit.use_orig_params,
        "limit_all_gathers": unit.limit_all_gathers,
        "device_id": env.device,
    }
    return options | ({"ignored_modules": ignored} if ignored else {})


def _prefetch(unit: Fsdp1Unit) -> BackwardPrefetch | None:
    return None if unit.backward_prefetch is None else BackwardPrefetch[unit.backward_prefetch]


def _precision(precision: Precision | None) -> MixedPrecision | None:
    if precision is None:
        return None
    return MixedPrecision(
        param_dtype=dtype_of(precision.param),
        reduce_dtype=dtype_of(precision.reduce),
        buffer_dtype=dtype_of(precision.buffer),
    )


def _is_unsharded(unit: FullyShardedDataParallel) -> bool:
    handle = unit._handle
    if handle is None or not handle.uses_sharded_strategy:
        return False
    flat = handle.flat_param
    local: torch.Tensor | None = getattr(flat, "_local_shard", None)
    if local is None:
        return False  # its forward never ran, so nothing was ever gathered
    padded: torch.Tensor | None = getattr(flat, "_full_param_padded", None)
    alive = padded is not None and padded.untyped_storage().size() > 0
    return alive or flat.data.shape != local.shape


def _contains(outer: str, inner: str) -> bool:
    return outer != inner and (not outer or inner.startswith(f"{outer}."))


def _depth(unit: Fsdp1Unit) -> int:
    return len(unit.path.split(".")) if unit.path else 0

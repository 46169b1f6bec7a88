"""State dicts of optimizers: taken, written as a table, lost and loaded."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._state_dict_utils import _gather_state_dict
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    ShardedOptimStateDictConfig,
    StateDictType,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from fsdpfuzz.steps.rank0 import from_rank0

Table = dict[str, dict[str, Tensor]]


# None leaves the config of the model's own state dict as the type has it.
def save_own(
    model: nn.Module, optimizer: Optimizer, full: bool, offload: bool = False, rank0: bool = False
) -> dict[str, Any]:
    """fsdp1's own ``optim_state_dict``."""
    if full:
        whole = FullOptimStateDictConfig(offload_to_cpu=offload, rank0_only=rank0)
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, None, whole):
            return FSDP.optim_state_dict(model, optimizer)
    parts = ShardedOptimStateDictConfig(offload_to_cpu=offload)
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT, None, parts):
        return FSDP.optim_state_dict(model, optimizer)


def load_own(
    model: nn.Module, optimizer: Optimizer, state: dict[str, Any], full: bool, rank0: bool = False
) -> None:
    """``optim_state_dict_to_load``, and ``load_state_dict`` of what it gives."""
    if full:
        whole = FullOptimStateDictConfig(rank0_only=rank0)
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, None, whole):
            given = FSDP.optim_state_dict_to_load(model, optimizer, state)
    else:
        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            given = FSDP.optim_state_dict_to_load(model, optimizer, state)
    optimizer.load_state_dict(given)


@torch.no_grad()
def forget(optimizer: Optimizer) -> None:
    """Changes every element of the state, and none of what was saved, which may share memory.

    Options that are no whole numbers, and not zero, are less: it could go on with what it has.
    """
    for p, state in optimizer.state.items():
        lost = {name: v - 1.0 if isinstance(v, Tensor) else v for name, v in state.items()}
        optimizer.state[p] = lost
    for group in optimizer.param_groups:
        group |= {name: less(value) for name, value in group.items() if name != "params"}


def less(value: Any) -> Any:
    """An option, or each of several, if it is no whole number; by no ratio of numbers of ranks."""
    if isinstance(value, tuple):
        return tuple(less(one) for one in value)
    return value * 0.7 if isinstance(value, (float, Tensor)) else value


# `_gather_state_dict` is private, but knows the ShardedTensors of fsdp1 as well as DTensors.
def table(state: Mapping[str, Any], flat: bool, rank0: bool, device: torch.device) -> Table:
    """What a state dict holds of each parameter, whole; rank 0's where others have none.

    ``flat`` says that it is flattened. Left out is what has moved no parameter.
    """
    found: Table = {}
    if flat:
        for key, value in _gather_state_dict(dict(state)).items():
            kind, _, name = key.partition(".")
            fqn, _, entry = name.rpartition(".")
            if kind == "state":
                found.setdefault(fqn, {})[entry] = number(value)
    else:
        for fqn, entries in _gather_state_dict(state.get("state", {})).items():
            found[fqn] = {entry: number(value) for entry, value in entries.items()}
    return moved(from_rank0(found, device) if rank0 else found)


def options(state: Mapping[str, Any], flat: bool, rank0: bool, device: torch.device) -> Table:
    """The options of each parameter's group that a state dict holds, as `table` does."""
    found: Table = {}
    if flat:
        for key, value in state.items():
            kind, _, name = key.partition(".")
            fqn, _, entry = name.rpartition(".")
            if kind == "param_groups" and is_number(value):
                found.setdefault(fqn, {})[entry] = number(value)
    else:
        for group in state.get("param_groups", ()):
            found |= dict.fromkeys(group["params"], options_of(group))
    return from_rank0(found, device) if rank0 else found


def entry(saved: Mapping[str, Any], fqn: str, name: str, full: bool) -> Tensor:
    """What a state dict holds of a parameter under a name, whole."""
    if full:
        value: Tensor = saved["state"][fqn][name]
        return value
    whole: Tensor = _gather_state_dict(saved["state"][fqn])[name]
    return whole


def names(saved: Mapping[str, Any]) -> list[str]:
    """What a state dict holds of parameters, by name."""
    return sorted(f"{fqn}.{entry}" for fqn, state in saved["state"].items() for entry in state)


def stepped(optimizer: Optimizer, named: Mapping[str, nn.Parameter]) -> list[str]:
    """The same of the plain model's optimizer."""
    held = {name: optimizer.state[p] for name, p in named.items() if p in optimizer.state}
    return sorted(f"{name}.{entry}" for name, state in held.items() for entry in state)


def held(optimizer: Optimizer, p: nn.Parameter, name: str) -> Tensor:
    """The same of the plain model's optimizer."""
    value: Tensor = optimizer.state[p][name]
    return value


def taken(optimizer: Optimizer, named: Mapping[str, nn.Parameter]) -> Table:
    """The same of the plain model's optimizer."""
    return moved(
        {
            name: {entry: number(value) for entry, value in optimizer.state[p].items()}
            for name, p in named.items()
            if p in optimizer.state
        }
    )


def given(optimizer: Optimizer, named: Mapping[str, nn.Parameter]) -> Table:
    """The options of each parameter's group that the plain model's optimizer has."""
    of = {p: options_of(group) for group in optimizer.param_groups for p in group["params"]}
    return {name: of[p] for name, p in named.items() if p in of}


def numbers(optimizer: Optimizer | None, named: Mapping[str, nn.Parameter]) -> Table:
    """The options of each group of an optimizer, and how often it has stepped each parameter.

    Of those alone that are moved by what this rank has of their state.
    """
    if optimizer is None:
        return {}
    held = {name: optimizer.state[p] for name, p in named.items() if p in optimizer.state}
    here = {name: {n: number(local(v)) for n, v in state.items()} for name, state in held.items()}
    steps = {name: {"step": s["step"]} for name, s in moved(here).items() if "step" in s}
    return groups(optimizer) | steps


# One expression: scripts then quote it where it is called.
def groups(optimizer: Optimizer | None) -> Table:
    """The options of each group of an optimizer, if there is one."""
    return {
        f"group {i}": options_of(group)
        for i, group in enumerate(() if optimizer is None else optimizer.param_groups)
    }


def gradients(optimizer: Optimizer | None) -> Tensor | None:
    """How many of an optimizer's parameters have one, 0-dim; None without an optimizer."""
    if optimizer is None:
        return None
    of = [p for group in optimizer.param_groups for p in group["params"]]
    return torch.tensor(float(sum(p.grad is not None for p in of)))


def local(value: Any) -> Any:
    """What this rank has of it."""
    return value.to_local() if isinstance(value, DTensor) else value


def options_of(group: Mapping[str, Any]) -> dict[str, Tensor]:
    """What a group of parameters is given in numbers."""
    given = {name: value for name, value in group.items() if name != "params"}
    return {name: number(value) for name, value in given.items() if is_number(value)}


def is_number(value: Any) -> bool:
    """Whether it is a finite number, or several of them; True and False are none."""
    if isinstance(value, (tuple, list)):
        return bool(value) and all(is_number(one) for one in value)
    if isinstance(value, Tensor):
        return value.dim() == 0 and value.dtype is not torch.bool and bool(value.isfinite())
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)


def number(value: Any) -> Tensor:
    """A copy on the CPU; of whole numbers in floating point, in which deviations are measured."""
    copied = torch.as_tensor(value).detach().cpu().clone()
    return copied if copied.is_floating_point() else copied.float()


def moved(found: Table) -> Table:
    """Without the parameters of which all but the number of steps is zero, as if never stepped."""
    return {
        fqn: entries
        for fqn, entries in found.items()
        if any(bool(t.ne(0).any()) for n, t in entries.items() if n != "step")
    }

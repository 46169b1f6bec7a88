"""State dicts of optimizers: taken, written as a table, lost and loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._state_dict_utils import _gather_state_dict
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    ShardedOptimStateDictConfig,
    StateDictType,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.optim import Optimizer

Table = dict[str, dict[str, Tensor]]


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
    """Changes every element of the state, and none of what was saved, which may share memory."""
    for p, state in optimizer.state.items():
        lost = {name: v - 1.0 if isinstance(v, Tensor) else v for name, v in state.items()}
        optimizer.state[p] = lost


def table(state: Mapping[str, Any], flat: bool, rank0: bool, device: torch.device) -> Table:
    """What a state dict holds of each parameter, whole; rank 0's where others have none.

    ``flat`` says that it is flattened. Left out is what has moved no parameter.
    """
    found: Table = {}
    if flat:
        for key, value in _gather_state_dict(dict(state)).items():
            kind, _, name = key.partition(".")
            fqn, _, entry = name.rpartition(".")
            if kind == "state" or entry == "lr":
                found.setdefault(fqn, {})[entry] = number(value)
    else:
        for fqn, entries in _gather_state_dict(state.get("state", {})).items():
            found[fqn] = {entry: number(value) for entry, value in entries.items()}
        for group in state.get("param_groups", ()):
            for fqn in group["params"]:
                found.setdefault(fqn, {})["lr"] = number(group["lr"])
    if rank0:
        holder = [found]
        dist.broadcast_object_list(holder, src=0, device=device)
        found = holder[0]
    return moved(found)


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
    rates = {p: group["lr"] for group in optimizer.param_groups for p in group["params"]}
    return moved(
        {
            name: {entry: number(value) for entry, value in optimizer.state[p].items()}
            | {"lr": number(rates[p])}
            for name, p in named.items()
            if p in optimizer.state
        }
    )


def number(value: Any) -> Tensor:
    """A copy on the CPU."""
    return torch.as_tensor(value).detach().cpu().clone()


def moved(found: Table) -> Table:
    """Without the parameters of which all but the number of steps is zero, as if never stepped."""
    return {
        fqn: entries
        for fqn, entries in found.items()
        if any(bool(t.ne(0).any()) for n, t in entries.items() if n not in ("step", "lr"))
    }

"""State dicts of optimizers: taken, written as a table, lost and loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._state_dict_utils import _gather_state_dict
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictType,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.optim import Optimizer

Table = dict[str, dict[str, Tensor]]


def save(model: nn.Module, optimizer: Optimizer, **options: Any) -> dict[str, Any]:
    """``get_optimizer_state_dict``."""
    return get_optimizer_state_dict(model, optimizer, options=StateDictOptions(**options))


def load(model: nn.Module, optimizer: Optimizer, state: dict[str, Any], **options: Any) -> None:
    """``set_optimizer_state_dict``."""
    set_optimizer_state_dict(model, optimizer, state, options=StateDictOptions(**options))


def save_own(
    model: nn.Module, optimizer: Optimizer, full: bool, offload: bool = False, rank0: bool = False
) -> dict[str, Any]:
    """fsdp1's own ``optim_state_dict``."""
    if full:
        with FSDP.state_dict_type(
            model,
            StateDictType.FULL_STATE_DICT,
            FullStateDictConfig(),
            FullOptimStateDictConfig(offload_to_cpu=offload, rank0_only=rank0),
        ):
            return FSDP.optim_state_dict(model, optimizer)
    with FSDP.state_dict_type(
        model,
        StateDictType.SHARDED_STATE_DICT,
        ShardedStateDictConfig(),
        ShardedOptimStateDictConfig(offload_to_cpu=offload),
    ):
        return FSDP.optim_state_dict(model, optimizer)


def load_own(
    model: nn.Module, optimizer: Optimizer, state: dict[str, Any], full: bool, rank0: bool = False
) -> None:
    """``optim_state_dict_to_load``, and ``load_state_dict`` of what it gives."""
    if full:
        with FSDP.state_dict_type(
            model,
            StateDictType.FULL_STATE_DICT,
            FullStateDictConfig(),
            FullOptimStateDictConfig(rank0_only=rank0),
        ):
            given = FSDP.optim_state_dict_to_load(model, optimizer, state)
    else:
        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            given = FSDP.optim_state_dict_to_load(model, optimizer, state)
    optimizer.load_state_dict(given)


@torch.no_grad()
def forget(optimizer: Optimizer) -> None:
    """Changes every element of the state."""
    for state in optimizer.state.values():
        for tensor in state.values():
            if isinstance(tensor, Tensor):
                tensor.sub_(1.0)


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
    holder = [found]
    if rank0:
        dist.broadcast_object_list(holder, src=0, device=device)
    return moved(holder[0])


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

"""A training on disk, with ``torch.distributed.checkpoint``."""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.optim import Optimizer


def save(state: dict[str, Any], device: torch.device) -> str:
    """Saves what `state_of` or `both` gives into a new folder, which all ranks are told of."""
    folder = new_folder(device)
    state_dict_saver.save(state, checkpoint_id=folder)
    return folder


def save_meanwhile(
    state: dict[str, Any], model: nn.Module, optimizer: Optimizer | None, device: torch.device
) -> str:
    """The same with ``async_save``, and every element of both is zeroed while it writes."""
    folder = new_folder(device)
    # Ranks that save in the background need a group with a CPU backend.
    group = None if device.type == "cpu" else dist.new_group(backend="gloo")
    writing: Any = state_dict_saver.async_save(state, checkpoint_id=folder, process_group=group)
    zero(model, optimizer)
    writing.result()
    return folder


@torch.no_grad()
def zero(model: nn.Module, optimizer: Optimizer | None) -> None:
    """Zeroes parameters, and what the optimizer holds of them."""
    for parameter in model.parameters():
        parameter.zero_()
    for held in optimizer.state.values() if optimizer is not None else ():
        for value in held.values():
            if isinstance(value, torch.Tensor):
                value.zero_()


def new_folder(device: torch.device) -> str:
    """One for all ranks, which rank 0 alone can name."""
    holder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(holder, src=0, device=device)
    return holder[0]


def load(
    model: nn.Module,
    optimizer: Optimizer | None,
    folder: str,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Loads both from the folder, and removes it; ``group`` are the ranks that load together."""
    # DCP loads into tensors that are there already.
    state = state_of(model, optimizer)
    state_dict_loader.load(state, checkpoint_id=folder, process_group=group)
    set_model_state_dict(model, state["model"])
    if optimizer is not None:
        set_optimizer_state_dict(model, optimizer, state["optimizer"])
    remove(folder)


def load_both(
    model: nn.Module,
    optimizer: Optimizer,
    folder: str,
    group: dist.ProcessGroup | None = None,
) -> None:
    """`load` by one call of ``get_state_dict`` and one of ``set_state_dict``."""
    state = both(model, optimizer)
    state_dict_loader.load(state, checkpoint_id=folder, process_group=group)
    of_model, of_optimizer = state["model"], state["optimizer"]
    set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer)
    remove(folder)


def remove(folder: str) -> None:
    """Removes what all ranks have read."""
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder)


def state_of(model: nn.Module, optimizer: Optimizer | None) -> dict[str, Any]:
    """The state dicts as DCP takes them: sharded, by FQN."""
    state: dict[str, Any] = {"model": get_model_state_dict(model)}
    if optimizer is not None:
        state["optimizer"] = get_optimizer_state_dict(model, optimizer)
    return state


def both(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """The same by one call."""
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer}

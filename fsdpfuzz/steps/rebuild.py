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
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer


def save(model: nn.Module, optimizer: Optimizer | None, device: torch.device) -> str:
    """Saves both into a new folder, which all ranks are told of."""
    # One folder for all ranks, which rank 0 alone can name.
    holder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(holder, src=0, device=device)
    state_dict_saver.save(state_of(model, optimizer), checkpoint_id=holder[0])
    return holder[0]


def load(model: nn.Module, optimizer: Optimizer | None, folder: str) -> None:
    """Loads both from the folder, and removes it."""
    # DCP loads into tensors that are there already.
    state = state_of(model, optimizer)
    state_dict_loader.load(state, checkpoint_id=folder)
    set_model_state_dict(model, state["model"])
    if optimizer is not None:
        set_optimizer_state_dict(model, optimizer, state["optimizer"])
    dist.barrier()  # no rank reads any more
    if dist.get_rank() == 0:
        shutil.rmtree(folder)


def state_of(model: nn.Module, optimizer: Optimizer | None) -> dict[str, Any]:
    """The state dicts as DCP takes them: sharded, by FQN."""
    state: dict[str, Any] = {"model": get_model_state_dict(model)}
    if optimizer is not None:
        state["optimizer"] = get_optimizer_state_dict(model, optimizer)
    return state

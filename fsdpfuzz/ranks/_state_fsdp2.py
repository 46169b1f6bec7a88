"""State dicts of fsdp2, through ``torch.distributed.checkpoint.state_dict``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._state_dict_utils import _gather_state_dict
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.tensor import DTensor

from fsdpfuzz.spec import StateDict


def on_rank0_only(request: StateDict) -> bool:
    """A full state dict that is offloaded exists on rank 0 alone, as the options document."""
    return request.form == "full" and (request.rank0_only or request.cpu_offload)


def save(model: nn.Module, request: StateDict) -> dict[str, Any]:
    """``get_model_state_dict`` in the form asked for."""
    options = StateDictOptions(
        full_state_dict=request.form == "full",
        cpu_offload=request.cpu_offload or request.rank0_only,
    )
    return dict(get_model_state_dict(model, options=options))


def load(model: nn.Module, request: StateDict, state: dict[str, Any]) -> None:
    """``set_model_state_dict``; what only rank 0 has is broadcast from there."""
    options = StateDictOptions(
        full_state_dict=request.form == "full",
        broadcast_from_rank0=on_rank0_only(request),
    )
    set_model_state_dict(model, dict(state), options=options)


@torch.no_grad()
def gather(_model: nn.Module, state: dict[str, Any]) -> dict[str, Tensor]:
    """Whole tensors by the names of the plain model."""
    whole: dict[str, Tensor] = _gather_state_dict(state)
    return whole


def is_sharded(value: object) -> bool:
    """Whether a value of a state dict is this rank's part of a tensor."""
    return isinstance(value, DTensor)

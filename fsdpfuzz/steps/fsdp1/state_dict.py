"""State dicts of fsdp1, through the state-dict types of ``FullyShardedDataParallel``."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._state_dict_utils import _gather_state_dict
from torch.distributed.fsdp import (
    FullStateDictConfig,
    LocalStateDictConfig,
    ShardedStateDictConfig,
    StateDictType,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp._common_utils import clean_tensor_name

from fsdpfuzz.steps.fsdp1.units import units

FLAT = "_flat_param"


def save(
    model: nn.Module, form: str, offload: bool = False, rank0_only: bool = False
) -> dict[str, Any]:
    """``model.state_dict()`` in the form asked for."""
    if form == "full":
        config = FullStateDictConfig(offload_to_cpu=offload, rank0_only=rank0_only)
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
            return model.state_dict()
    if form == "sharded":
        sharded = ShardedStateDictConfig(offload_to_cpu=offload)
        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT, sharded):
            return model.state_dict()
    local = LocalStateDictConfig(offload_to_cpu=offload)
    with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT, local):
        return model.state_dict()


def set_form(model: nn.Module, form: str, offload: bool = False, rank0_only: bool = False) -> None:
    """Has ``state_dict()`` and ``load_state_dict()`` in this form from now on."""
    if form == "full":
        config = FullStateDictConfig(offload_to_cpu=offload, rank0_only=rank0_only)
        FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT, config)
    elif form == "sharded":
        sharded = ShardedStateDictConfig(offload_to_cpu=offload)
        FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT, sharded)
    else:
        local = LocalStateDictConfig(offload_to_cpu=offload)
        FSDP.set_state_dict_type(model, StateDictType.LOCAL_STATE_DICT, local)


def load(model: nn.Module, form: str, state: dict[str, Any]) -> None:
    """Loads what `save` gave; every rank must hand in its own."""
    name = {"full": "FULL", "sharded": "SHARDED", "local": "LOCAL"}[form]
    with FSDP.state_dict_type(model, StateDictType[f"{name}_STATE_DICT"]):
        model.load_state_dict(dict(state))


@torch.no_grad()
def whole(
    model: nn.Module,
    form: str,
    state: dict[str, Any],
    empty: Collection[str] = (),
) -> dict[str, Tensor]:
    """Whole tensors by the names of the plain model, flat parameters taken apart.

    ``empty`` are the names of those without elements, which cannot be gathered.
    """
    if empty:
        state = {name: torch.empty(v.size()) if name in empty else v for name, v in state.items()}
    # Gathers ShardedTensors and leaves whole tensors as they are.
    gathered: dict[str, Tensor] = _gather_state_dict(state)
    if form == "local":
        for name, unit in units(model):
            flat = gathered.pop(f"{name}.{FLAT}".strip("."), None)
            if flat is not None and unit._handle is not None:
                gathered.update(taken_apart(unit._handle.flat_param, name, flat))
    return gathered


# With use_orig_params each parameter starts at a multiple of 16 bytes, so pads lie between them
# (``_get_aligned_numel`` in torch/distributed/fsdp/_flat_param.py).
def taken_apart(held: Any, unit: str, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The original parameters in a whole flat parameter, without what pads them.

    It has the elements of each as they lay in memory.
    """
    parts = flat[: sum(held._numels_with_padding)].split(held._numels_with_padding)
    real = [part for part, pads in zip(parts, held._is_padding_mask, strict=True) if not pads]
    for fqn, shape, stride, part in zip(held._fqns, held._shapes, held._strides, real, strict=True):
        yield clean_tensor_name(f"{unit}.{fqn}".strip(".")), part.as_strided(shape, stride)

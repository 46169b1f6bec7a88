"""State dicts of fsdp1, through the state-dict types of ``FullyShardedDataParallel``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed._state_dict_utils import _gather_state_dict
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel,
    LocalStateDictConfig,
    ShardedStateDictConfig,
    StateDictConfig,
    StateDictType,
)

from fsdpfuzz.ranks._names import clean
from fsdpfuzz.spec import StateDict

FLAT = "_flat_param"

_TYPES = {
    "full": StateDictType.FULL_STATE_DICT,
    "sharded": StateDictType.SHARDED_STATE_DICT,
    "local": StateDictType.LOCAL_STATE_DICT,
}


def save(model: nn.Module, request: StateDict) -> dict[str, Any]:
    """``model.state_dict()`` in the form asked for."""
    with _form(model, request, _config(request)):
        return dict(model.state_dict())


def load(model: nn.Module, request: StateDict, state: dict[str, Any]) -> None:
    """Loads what `save` gave; every rank must hand in its own."""
    with _form(model, request, _config(StateDict(form=request.form))):
        model.load_state_dict(dict(state))


@torch.no_grad()
def gather(model: nn.Module, state: dict[str, Any]) -> dict[str, Tensor]:
    """Whole tensors by the names of the plain model, flat parameters taken apart."""
    whole: dict[str, Tensor] = _gather_state_dict(state)
    flats = {key: whole.pop(key) for key in list(whole) if key.rpartition(".")[2] == FLAT}
    units = {
        clean(name): module
        for name, module in model.named_modules()
        if isinstance(module, FullyShardedDataParallel)
    }
    for key, flat in flats.items():
        path = key.removesuffix(FLAT).removesuffix(".")
        if path in units:
            whole.update(_taken_apart(units[path], path, flat))
    return whole


def is_sharded(value: object) -> bool:
    """Whether a value of a state dict is this rank's part of a tensor."""
    return isinstance(value, ShardedTensor)


def _taken_apart(
    unit: FullyShardedDataParallel, path: str, flat: Tensor
) -> Iterator[tuple[str, Tensor]]:
    handle = unit._handle
    if handle is None:
        return
    held = handle.flat_param
    parts = torch.split(flat[: sum(held._numels_with_padding)], list(held._numels_with_padding))
    real = [part for part, pad in zip(parts, held._is_padding_mask, strict=True) if not pad]
    for fqn, shape, part in zip(held._fqns, held._shapes, real, strict=True):
        yield clean(f"{path}.{fqn}" if path else fqn), part.view(shape)


def _config(request: StateDict) -> StateDictConfig:
    match request.form:
        case "full":
            return FullStateDictConfig(
                offload_to_cpu=request.cpu_offload, rank0_only=request.rank0_only
            )
        case "sharded":
            return ShardedStateDictConfig(offload_to_cpu=request.cpu_offload)
        case _:
            return LocalStateDictConfig(offload_to_cpu=request.cpu_offload)


@contextmanager
def _form(model: nn.Module, request: StateDict, config: StateDictConfig) -> Iterator[None]:
    """``FSDP.state_dict_type`` without its notice that another API is preferred."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", message="When using ``NO_SHARD``")
        with FullyShardedDataParallel.state_dict_type(model, _TYPES[request.form], config):
            yield

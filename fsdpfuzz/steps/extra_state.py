"""State dicts of models that have extra state: what is in a dict, or a number, counts as entries.

Each is a tensor of its own then, as parameters and buffers are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp._common_utils import clean_tensor_name

from fsdpfuzz.steps import state_dict
from fsdpfuzz.steps.modules.extra_state import ExtraState

KEY = "_extra_state"
"""Last part of the key under which ``nn.Module.state_dict`` has it."""


def entries(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state dict without dicts and numbers in it."""
    found: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, dict):
            found.update(entries({f"{key}.{name}": one for name, one in value.items()}))
        else:
            found[key] = torch.tensor(value) if isinstance(value, int) else value
    return found


def held(model: nn.Module) -> dict[str, Tensor]:
    """The entries of all extra state in a model."""
    modules = [(n, m) for n, m in model.named_modules() if isinstance(m, ExtraState)]
    keys = (clean_tensor_name(f"{name}.{KEY}".lstrip(".")) for name, _ in modules)
    return entries({key: m.get_extra_state() for key, (_, m) in zip(keys, modules, strict=True)})


@torch.no_grad()
def blank(model: nn.Module, fill: int = 0, other: int = -1) -> nn.Module:
    """The model with every element changed that is saved: to ``fill``, or from it to ``other``."""
    for value in {id(value): value for value in model.state_dict(keep_vars=True).values()}.values():
        if isinstance(value, Tensor):
            value.copy_(torch.where(value == fill, other, fill))
    # Of these the state dict has copies.
    for module in model.modules():
        if isinstance(module, ExtraState):
            module.quarters = 0
            module.calls = 0 if module.calls else -1
    return model


def broadcast(state: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Rank 0's full state dict on every rank."""
    extra = {key: value for key, value in state.items() if key.endswith(KEY)}
    rest = {key: value for key, value in state.items() if key not in extra}
    holder = [extra]
    dist.broadcast_object_list(holder, src=0, device=device)
    return state_dict.broadcast(rest, device) | holder[0]


def forms(model: nn.Module, without: Sequence[str] = (), prefix: str = "") -> dict[str, Any]:
    """Shape and dtype of each entry of the plain model's state dict but those that are named.

    With a ``prefix``, of those whose key begins with it.
    """
    state = entries(model.state_dict())
    for key in without:
        del state[key]
    if prefix:
        state = {key: value for key, value in state.items() if key.startswith(prefix)}
    return {key: (tuple(value.shape), value.dtype) for key, value in state.items()}

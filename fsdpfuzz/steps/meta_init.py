"""Models on the meta device, and what gives them the values of a plain one."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.tensor import DTensor, distribute_tensor


def on_meta(plain: nn.Module, part: str) -> nn.Module:
    """A copy of a model that has shapes alone: in a part of it, or without one in all of it."""
    model = copy.deepcopy(plain)
    module = model.get_submodule(part) if part else model
    module.to("meta")
    return model


def sharded(right: Tensor, value: Tensor) -> Tensor:
    """A whole tensor, sharded as another one is."""
    if not isinstance(value, DTensor):
        return right
    mesh, placements = value.device_mesh, value.placements
    # Before torch 2.10 a shard that no rank sends is a view, which keeps the whole tensor alive.
    return distribute_tensor(right, mesh, placements, src_data_rank=None).clone()


@torch.no_grad()
def reset(model: nn.Module, plain: nn.Module, device: torch.device) -> None:
    """Memory first, then values in place, as ``reset_parameters`` of modules writes them."""
    model.to_empty(device=device)
    for p, whole in zip(model.parameters(), plain.parameters(), strict=True):
        p.copy_(sharded(whole, p))
    for buffer, right in zip(model.buffers(), plain.buffers(), strict=True):
        buffer.copy_(right)


def load(model: nn.Module, plain: nn.Module, broadcast: bool) -> None:
    """A full state dict; with ``broadcast`` only rank 0 has it."""
    state = plain.state_dict() if not broadcast or dist.get_rank() == 0 else {}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=broadcast)
    set_model_state_dict(model, state, options=options)


def assign(model: nn.Module, plain: nn.Module) -> None:
    """Other tensors, sharded as they should be, in place of those on the meta device."""
    right = plain.state_dict()
    state = {name: sharded(right[name], value) for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


def unsaved(model: nn.Module, plain: nn.Module) -> None:
    """Buffers that are in no state dict."""
    for (name, buffer), right in zip([*model.named_buffers()], plain.buffers(), strict=True):
        if buffer.is_meta:
            path, _, last = name.rpartition(".")
            setattr(model.get_submodule(path), last, right)


def param_init_fn(
    model: nn.Module, plain: nn.Module, device: torch.device
) -> Callable[[nn.Module], None]:
    """What fsdp1 calls with each module of a unit in which anything is on the meta device.

    It is about what is the module's own, and not in those inside; wrappers have nothing.
    """
    origins = dict(zip(model.modules(), plain.modules(), strict=True))

    def materialise(module: nn.Module) -> None:
        module.to_empty(device=device, recurse=False)
        copy_own(origins.get(module, module), module)

    return materialise


def to_empty(device: torch.device) -> Callable[[nn.Module], None]:
    """The same where rank 0 sends the values.

    FSDP hands it every module of the unit. One that has values keeps them: what FSDP ignores is
    not sent.
    """

    def make_room(module: nn.Module) -> None:
        own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        if any(tensor.is_meta for tensor in own):
            module.to_empty(device=device, recurse=False)

    return make_room


def resettable(model: nn.Module, plain: nn.Module) -> None:
    """Gives modules the ``reset_parameters`` that fsdp1 calls after ``to_empty``."""
    for module, right in zip(model.modules(), plain.modules(), strict=True):
        module.reset_parameters = lambda m=module, own=right: copy_own(own, m)  # type: ignore[assignment]


@torch.no_grad()
def copy_own(plain: nn.Module, module: nn.Module) -> None:
    """Gives a module's own parameters and buffers the values of another's."""
    for p, right in zip(
        module.parameters(recurse=False), plain.parameters(recurse=False), strict=True
    ):
        p.copy_(right)
    for buffer, value in zip(
        module.buffers(recurse=False), plain.buffers(recurse=False), strict=True
    ):
        buffer.copy_(value)

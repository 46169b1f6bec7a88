"""A model of your own: its inputs, and what is put out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map

from fsdpfuzz.steps.inputs import STRIDE


def given(
    batch: Callable[[int, int], Any],
    seed: int,
    i: int,
    rank: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Any:
    """Your batch for the forward number ``i``, on the device, floats in the dtype asked for."""
    # Your batch draws from torch's own generator.
    torch.manual_seed(seed + STRIDE * i + rank + 1)

    def moved(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.to(device, dtype) if value.is_floating_point() else value.to(device)

    return tree_map(moved, batch(i, rank))


def cast(model: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """``model.to(device, dtype)``, which would make real numbers of complex ones, without that."""
    held = {name: buffer for name, buffer in model.named_buffers() if buffer.is_complex()}
    model.to(device, dtype)
    width = torch.complex128 if dtype == torch.float64 else torch.complex64
    for name, buffer in held.items():
        path, _, own = name.rpartition(".")
        setattr(model.get_submodule(path), own, buffer.to(device, width))
    return model


def sharded(
    model: nn.Module, shard: Callable[[nn.Module, DeviceMesh], Any], device: torch.device
) -> nn.Module:
    """The model as your own function wraps it, over all ranks."""
    made = shard(model, init_device_mesh(device.type, (dist.get_world_size(),)))
    if isinstance(made, tuple):
        made = made[0]
    return model if made is None else made


def both(
    model: nn.Module, shard: Callable[[nn.Module, DeviceMesh], Any], device: torch.device
) -> tuple[nn.Module, Optimizer]:
    """The same where your own function gives an optimizer, too."""
    made, optimizer = shard(model, init_device_mesh(device.type, (dist.get_world_size(),)))
    return made, optimizer


def weights(model: nn.Module) -> dict[str, Tensor]:
    """A full state dict, as of a training elsewhere: each number is another than the model's."""
    return {
        name: 0.75 * value + 0.0625 if value.is_floating_point() else value.clone()
        for name, value in model.state_dict().items()
    }


def called(model: nn.Module, batch: Any) -> Any:
    """``model(**batch)`` for a dict, ``model(*batch)`` for several, else ``model(batch)``."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)


def loss_in(model: nn.Module, batch: Any) -> Tensor:
    """The loss that the model returns."""
    found = called(model, batch)
    loss: Tensor = found["loss"] if isinstance(found, Mapping) else found.loss
    return loss


def returned(model: nn.Module, batch: Any) -> Tensor:
    """All floating-point tensors that the model returns, in one row."""
    found = called(model, batch)
    leaves = tree_leaves(vars(found) if hasattr(found, "__dataclass_fields__") else found)
    tensors = [t for t in leaves if isinstance(t, Tensor) and t.is_floating_point()]
    return torch.cat([t.reshape(-1) for t in tensors])

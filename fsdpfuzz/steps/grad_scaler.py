"""Gradient scaling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler


def sharded(device: torch.device, init_scale: float, growth_interval: int) -> GradScaler:
    """FSDP1's own, which takes gradients of float16, too."""
    return ShardedGradScaler(device.type, init_scale=init_scale, growth_interval=growth_interval)


def plain(device: torch.device, init_scale: float, growth_interval: int) -> GradScaler:
    """PyTorch's."""
    return GradScaler(device.type, init_scale=init_scale, growth_interval=growth_interval)


def by_dtype(
    device: torch.device, dtype: torch.dtype, init_scale: float, growth_interval: int
) -> GradScaler:
    """PyTorch's, but for a model in float16, whose gradients that refuses."""
    if dtype == torch.float16:
        return sharded(device, init_scale, growth_interval)
    return plain(device, init_scale, growth_interval)


def made_again(scaler: GradScaler, device: torch.device) -> GradScaler:
    """Another one, with nothing but the state of this one."""
    again = type(scaler)(device.type)
    again.load_state_dict(scaler.state_dict())
    return again


def state(scaler: GradScaler) -> dict[str, dict[str, Tensor]]:
    """The scale, and how many steps it has not changed for."""
    kept = scaler.state_dict()
    names = ("scale", "_growth_tracker")
    return {"scaler": {name.strip("_"): torch.tensor(float(kept[name])) for name in names}}


def overflow(named: Mapping[str, nn.Parameter], name: str) -> None:
    """A gradient that is not finite."""
    grad: Any = named[name].grad
    grad.mul_(torch.inf)


def overflow_here(named: Mapping[str, nn.Parameter], name: str) -> None:
    """The same, as far as it lies on this rank."""
    grad = named[name].grad
    if grad is not None:
        grad.mul_(torch.inf)


def overflow_first(named: Mapping[str, nn.Parameter], name: str) -> None:
    """The same of a DTensor, on the rank that has the first of its shards."""
    grad: Any = named[name].grad
    where = zip(grad.device_mesh.get_coordinate(), grad.placements, strict=True)
    if all(placement.is_replicate() or not index for index, placement in where):
        grad.to_local().mul_(torch.inf)

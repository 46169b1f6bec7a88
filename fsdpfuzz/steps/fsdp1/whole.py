"""Whole tensors, gathered from all ranks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from fsdpfuzz.steps.names import parameters


def value(model: nn.Module, named: Mapping[str, nn.Parameter], name: str) -> Tensor:
    """A parameter."""
    with FSDP.summon_full_params(model):
        return parameters(model, True)[name].detach().clone()


def gradient(model: nn.Module, named: Mapping[str, nn.Parameter], name: str) -> Tensor:
    """A parameter's gradient; zeros where it has none."""
    put_in_place(named)
    return value(model, named, name)


def values(model: nn.Module, named: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """All parameters."""
    with FSDP.summon_full_params(model):
        return {name: p.detach().clone() for name, p in parameters(model, True).items()}


def gradients(model: nn.Module, named: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """The gradients of all of them; zeros where one has none."""
    put_in_place(named)
    return values(model, named)


# summon_full_params gathers gradients with use_orig_params only (``with_grads``).
def put_in_place(named: Mapping[str, nn.Parameter]) -> None:
    """Puts gradients where the values are, so that they are gathered as these are.

    All units must be sharded, as they are after a backward.
    """
    for p in named.values():
        p.data.copy_(torch.zeros_like(p) if p.grad is None else p.grad)

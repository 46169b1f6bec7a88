"""Another model that loads what a training has saved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._state_dict_utils import _gather_state_dict
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._common_utils import clean_tensor_name
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from fsdpfuzz.steps.optim_state import Table, table


def fsdp1(model: nn.Module, mesh: DeviceMesh, device: torch.device) -> nn.Module:
    """All of it in one unit, its parameters shown as they are."""
    return FSDP(model, device_mesh=mesh, use_orig_params=True, device_id=device)


def fsdp2(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """All of it in one unit."""
    fully_shard(model, mesh=mesh)
    return model


def ddp(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """All of it on each rank, by DDP."""
    return DistributedDataParallel(model, process_group=mesh.get_group())


def compiled(model: nn.Module) -> nn.Module:
    """What ``torch.compile`` makes of it, which is never run."""
    # The default backend would be imported by each fresh rank, for seconds on a busy machine.
    made: Any = torch.compile(model, backend="eager")
    whole: nn.Module = made
    return whole


def parameters(
    model: nn.Module, second: Sequence[str] = (), inner: nn.Module | None = None
) -> dict[str, Tensor]:
    """All of a model's, whole and by FQN, but for the ``second`` names of those that are tied.

    ``inner`` is the model without what was put around it whose names have another prefix.
    """
    whole: dict[str, Any] = _gather_state_dict(get_model_state_dict(model))
    plain = model if inner is None else inner
    others = {clean_tensor_name(name) for name, _ in plain.named_buffers()}.union(second)
    return {name: value for name, value in whole.items() if name not in others}


def state(model: nn.Module, optimizer: Optimizer | None, device: torch.device) -> Table | None:
    """What an optimizer, if there is one, holds of each parameter, whole."""
    if optimizer is None:
        return None
    return table(get_optimizer_state_dict(model, optimizer), False, False, device)

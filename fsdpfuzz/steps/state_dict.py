"""What saving and loading takes beside the API's own calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


# In place, so that what is tied stays tied; and once, by whatever names it is there.
@torch.no_grad()
def blank(model: nn.Module, fill: int = 0, other: int = -1) -> nn.Module:
    """The model with every element changed that is saved: to ``fill``, or from it to ``other``."""
    for tensor in dict.fromkeys(model.state_dict(keep_vars=True).values()):
        tensor.copy_(torch.where(tensor == fill, other, fill))
    return model


def broadcast(state: dict[str, Any], device: torch.device) -> dict[str, Tensor]:
    """Rank 0's full state dict on every rank."""
    rank = dist.get_rank()
    forms = [(key, value.shape, value.dtype) for key, value in state.items()]
    # Other ranks may have no entries, and cannot know what comes.
    holder: list[Any] = [forms if rank == 0 else None]
    dist.broadcast_object_list(holder, src=0, device=device)
    out = {}
    for key, shape, dtype in holder[0]:
        tensor = torch.empty(shape, dtype=dtype, device=device)
        if rank == 0:
            tensor.copy_(state[key])
        dist.broadcast(tensor, src=0)
        out[key] = tensor
    return out


def prefixed(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The entries with that in front of their keys."""
    return {prefix + key: value for key, value in state.items()}


def forms(model: nn.Module, without: Sequence[str] = (), prefix: str = "") -> dict[str, Any]:
    """Shape and dtype of each entry of the plain model's state dict but those that are named.

    With a ``prefix``, of those whose key begins with it.
    """
    whole = model.state_dict()
    for key in without:
        del whole[key]
    if prefix:
        whole = {key: value for key, value in whole.items() if key.startswith(prefix)}
    return {key: (tuple(value.shape), value.dtype) for key, value in whole.items()}

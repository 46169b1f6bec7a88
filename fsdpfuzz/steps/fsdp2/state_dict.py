"""State dicts of fsdp2, through ``torch.distributed.checkpoint.state_dict``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._state_dict_utils import _gather_state_dict
from torch.distributed.checkpoint import state_dict as dcp


def save(
    model: nn.Module,
    form: str,
    offload: bool = False,
    ignore_frozen: bool = False,
    prefix: str = "",
    part: Any = None,
) -> dict[str, Any]:
    """``get_model_state_dict`` in the form asked for: with a ``prefix``, of a module in it alone.

    The prefix is that module's FQN, kept or dropped.
    """
    options = dcp.StateDictOptions(full_state_dict=form == "full", cpu_offload=offload)
    if ignore_frozen:
        options.ignore_frozen_params = True
    if not prefix:
        return dcp.get_model_state_dict(model, options=options)
    if prefix == "dropped":
        options.keep_submodule_prefixes = False
    return dcp.get_model_state_dict(model, submodules={part}, options=options)


def load(
    model: nn.Module,
    form: str,
    state: dict[str, Any],
    broadcast: bool = False,
    ignore_frozen: bool = False,
    prefix: str = "",
    part: Any = None,
) -> None:
    """``set_model_state_dict`` with the state itself, which may come from a load before it.

    With ``broadcast`` only rank 0 has it. With a ``prefix`` it is of one module; where that was
    dropped, of ``part``.
    """
    full = form == "full"
    options = dcp.StateDictOptions(full_state_dict=full, broadcast_from_rank0=broadcast)
    if ignore_frozen:
        options.ignore_frozen_params = True
    if ignore_frozen or prefix:
        options.strict = False
    if prefix == "dropped":
        state = {part: state}
    dcp.set_model_state_dict(model, state, options=options)


@torch.no_grad()
def whole(model: nn.Module, form: str, state: dict[str, Any]) -> dict[str, Tensor]:
    """Whole tensors by the names of the plain model."""
    gathered: dict[str, Tensor] = _gather_state_dict(state)
    return gathered

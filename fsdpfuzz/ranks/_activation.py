"""Placing activation checkpoints and offloads on a model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from torch.distributed._composable.checkpoint_activation import checkpoint as composable_checkpoint
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    checkpoint_wrapper,
    offload_wrapper,
)
from torch.utils.checkpoint import checkpoint

from fsdpfuzz.ranks._names import replace
from fsdpfuzz.spec import Checkpoint


def place(model: nn.Module, checkpoint: Checkpoint, *, inside_unit: bool) -> nn.Module:
    """Applies one checkpoint and returns the root, which may be a new module.

    ``inside_unit`` says that the module is about to become a unit and that FSDP's hooks
    must stay outside of what is recomputed.
    """
    module = model.get_submodule(checkpoint.path)
    match checkpoint.kind:
        case "wrapper":
            wrapped = checkpoint_wrapper(module, checkpoint_impl=_impl(checkpoint.reentrant))
            return replace(model, checkpoint.path, wrapped)
        case "offload":
            return replace(model, checkpoint.path, offload_wrapper(module))
        case "composable":
            composable_checkpoint(module)
            return model
        case "function" | "function_offload" if inside_unit and checkpoint.kind == "function":
            module.forward = recomputed(module.forward, checkpoint.reentrant)
            return model
        case _:
            module.recompute = {  # type: ignore[assignment]
                "reentrant": checkpoint.reentrant,
                "offload": checkpoint.kind == "function_offload",
            }
            return model


def recomputed(forward: Callable[..., Any], reentrant: bool) -> Callable[..., Any]:
    """``forward`` through ``torch.utils.checkpoint``."""
    return partial(checkpoint, forward, use_reentrant=reentrant)


def _impl(reentrant: bool) -> CheckpointImpl:
    return CheckpointImpl.REENTRANT if reentrant else CheckpointImpl.NO_REENTRANT

"""Activation checkpointing that is not a call of PyTorch's on a module."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint


def recompute(module: nn.Module, reentrant: bool) -> None:
    """The module's own forward is recomputed, and hooks on the module are not."""
    # Not a wrapper around the module: FSDP's hooks hang on its call, not on its forward.
    module.forward = partial(checkpoint, module.forward, use_reentrant=reentrant)


# An attribute and no wrapper: FQNs stay those of the plain model, and who calls the module
# recomputes it with its hooks, FSDP's among them.
def ask(module: nn.Module, reentrant: bool, offload: bool) -> None:
    """The module's caller is to recompute it, with all hooks: see `call`."""
    module.recompute = {"reentrant": reentrant, "offload": offload}  # type: ignore[assignment]


def call(module: nn.Module, *args: Tensor, **kwargs: Any) -> Tensor:
    """Calls ``module``, through ``torch.utils.checkpoint`` where it asks for that."""
    options: dict[str, Any] | None = getattr(module, "recompute", None)
    if options is None:
        return module(*args, **kwargs)
    # pin_memory is passed over where there is no GPU.
    with save_on_cpu(pin_memory=True) if options["offload"] else nullcontext():
        return checkpoint(module, *args, use_reentrant=options["reentrant"], **kwargs)

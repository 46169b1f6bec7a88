"""Which modules of somebody's model may be recomputed: tried one by one, without FSDP."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed._composable.checkpoint_activation import checkpoint

from fsdpfuzz.ranks._imported_parts import CLOSE, close, close_all
from fsdpfuzz.steps.checkpointing import recompute

PATIENCE = 5.0
"""Seconds in which it is tried which modules may be recomputed."""
_Way = Callable[[nn.Module], object]
_OF_FORWARD: _Way = partial(recompute, reentrant=False)


class Plain(Protocol):
    """A target without FSDP, as far as it is asked for here."""

    def made(self) -> nn.Module:
        """What ``model()`` gives."""

    def given(self, dtype: torch.dtype, step: int) -> Any:
        """What ``batch`` gives."""

    def loss_of(self, model: nn.Module, given: Any) -> Any:
        """The loss."""


class Trained(Protocol):
    """One forward and backward without recomputation."""

    model: nn.Module
    loss: Tensor
    grads: dict[str, Tensor | None]


def odd_modules(plain: Plain, run: Trained, paths: Collection[str]) -> set[str]:
    """Of ``paths`` those that come to something else than ``run`` when they are recomputed.

    Where that takes too long, those that were not looked at are among them.
    """
    odd: set[str] = set()
    end = time.monotonic() + PATIENCE
    for path in sorted(paths):
        module = run.model.get_submodule(path)
        # This one recomputes a module's hooks, too, on what they have made of the inputs.
        hooked = module._forward_pre_hooks or module._forward_hooks
        ways = (_OF_FORWARD, checkpoint) if hooked else (_OF_FORWARD,)
        if time.monotonic() > end or not all(_fits(plain, run, path, way) for way in ways):
            odd.add(path)
    return odd


def _fits(plain: Plain, run: Trained, path: str, way: _Way) -> bool:
    model = plain.made().requires_grad_(True)
    given = plain.given(torch.float32, 0)
    try:
        way(model.get_submodule(path))
        torch.manual_seed(0)
        loss = plain.loss_of(model, given)
        loss.backward()
    except Exception:  # whatever keeps it from being recomputed
        return False
    grads: dict[str, Tensor | None] = {n: p.grad for n, p in model.named_parameters()}
    return close(loss.detach(), run.loss, CLOSE) and close_all(grads, run.grads)

"""What the plain model does with its gradients where FSDP reduces its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn


# Divided first: a sum of float16 over the ranks may leave its range.
def average(
    parameters: Iterable[nn.Parameter], lacking: bool = False, strided: bool = False
) -> None:
    """Puts the mean over all ranks into every gradient.

    What a backward before has averaged is equal on all ranks and stays as it is. ``lacking``
    says that parameters may have no gradient, on all ranks alike; ``strided`` that some do not
    lie in memory as they are indexed, which NCCL does not take ("Tensors must be contiguous").
    """
    for grad in [p.grad for p in parameters if not lacking or p.grad is not None]:
        if strided:
            mean = grad.div(dist.get_world_size()).contiguous()  # type: ignore[union-attr]
            dist.all_reduce(mean)
            grad.copy_(mean)  # type: ignore[union-attr]
        else:
            dist.all_reduce(grad.div_(dist.get_world_size()))  # type: ignore[union-attr]


# Ranks that took different paths lack different gradients, and `average` needs one of each
# parameter on all of them.
def fill(parameters: Iterable[nn.Parameter], device: torch.device) -> None:
    """Gives zeros to parameters without a gradient that have one on another rank."""
    listed = list(parameters)
    held = torch.tensor([float(p.grad is not None) for p in listed], device=device)
    # On every rank, those with all gradients as well.
    dist.all_reduce(held)
    for p, ranks in zip(listed, held.tolist(), strict=True):
        if ranks and p.grad is None:
            p.grad = torch.zeros_like(p)


def fill_together(named: Mapping[str, nn.Parameter], units: Sequence[Sequence[str]]) -> None:
    """Gives zeros to parameters without a gradient beside some of the same unit that have one."""
    for names in units:
        trained = [named[name] for name in names if named[name].requires_grad]
        if any(p.grad is not None for p in trained):
            for p in trained:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)


def zeros(named: Mapping[str, nn.Parameter], names: Sequence[str]) -> None:
    """Gives zeros to those of the named parameters that have no gradient."""
    for name in names:
        p = named[name]
        if p.grad is None:
            p.grad = torch.zeros_like(p)


# ``Tensor.register_hook`` takes only a tensor that requires grad,
# but the hook stays when that is frozen again.
def scaled(parameters: Iterable[nn.Parameter], factor: float, freezes: bool = False) -> None:
    """Has every gradient of these parameters multiplied as soon as it is there.

    ``freezes`` says that some are frozen, now or later; they may be trained some day.
    """
    for p in parameters:
        if freezes:
            trained = p.requires_grad
            p.requires_grad_()
        p.register_hook(lambda grad: grad * factor)
        if freezes:
            p.requires_grad_(trained)


def put_aside(
    named: Mapping[str, nn.Parameter], names: Sequence[str]
) -> dict[str, torch.Tensor | None]:
    """Takes the gradients of these parameters, which FSDP replaces under CPU offload."""
    aside = {name: named[name].grad for name in names}
    for name in names:
        named[name].grad = None
    return aside


def put_back(
    named: Mapping[str, nn.Parameter],
    aside: Mapping[str, torch.Tensor | None],
    units: Sequence[Sequence[str]],
) -> None:
    """Gives the parameters of each unit that has got no gradient since those that it had."""
    for names in units:
        if all(named[name].grad is None for name in names):
            for name in names:
                named[name].grad = aside[name]

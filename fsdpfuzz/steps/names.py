"""Parameters by the names that they have in the plain model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp._common_utils import clean_tensor_name


# Wrappers put "_fsdp_wrapped_module." and "_checkpoint_wrapped_module." into names, which
# `clean_tensor_name` takes out; it is private, but FSDP's own
# (torch/distributed/fsdp/_common_utils.py).
def parameters(model: nn.Module, prefixed: bool) -> dict[str, nn.Parameter]:
    """The parameters as they are registered now.

    A unit that is whole has others. ``prefixed`` says that wrappers put parts into the names.
    """
    if not prefixed:
        return dict(model.named_parameters())
    return {clean_tensor_name(name): p for name, p in model.named_parameters()}


def others(named: Mapping[str, nn.Parameter], names: Sequence[str]) -> list[nn.Parameter]:
    """The parameters without those of these names."""
    return [p for name, p in named.items() if name not in names]


def those(named: Mapping[str, nn.Parameter], names: Sequence[str]) -> list[nn.Parameter]:
    """The parameters of these names."""
    return [named[name] for name in names]


def parameters_of(modules: Sequence[nn.Module]) -> set[nn.Parameter]:
    """All parameters of some modules."""
    return {p for module in modules for p in module.parameters()}


def at(named: Mapping[str, nn.Parameter], name: str) -> nn.Parameter:
    """One of them."""
    return named[name]


def value(named: Mapping[str, nn.Parameter], name: str) -> Tensor:
    """The values of one of them."""
    return named[name].detach()


def gradient(named: Mapping[str, nn.Parameter], name: str, lacking: bool) -> Tensor | None:
    """The gradient of one of them; zeros where it may lack one."""
    if not lacking:
        return named[name].grad
    p = named[name]
    return torch.zeros_like(p) if p.grad is None else p.grad


def copy(p: Tensor, zero: bool) -> Tensor:
    """The values as they are now, or zeros of the same shape."""
    return torch.zeros_like(p) if zero else p.detach().clone()


def item(values: Sequence[Any], i: int) -> Any:
    """One of a list."""
    return values[i]


def entry(values: Mapping[str, Any], name: str) -> Any:
    """One of those that have names."""
    return values[name]


def keys(values: Mapping[str, Any]) -> list[str]:
    """Their names, and those of what each of them holds."""
    inside = [f"{name} {n}" for name, one in values.items() if isinstance(one, dict) for n in one]
    return sorted(values) + sorted(inside)


def count(values: Sequence[Any]) -> int:
    """How many there are."""
    return len(values)


def starting(texts: Sequence[str], start: str, number: int) -> int:
    """How many texts begin so, with the number at the end of a sentence."""
    return sum(text.startswith(f"{start} {number}.") for text in texts)


def values(named: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """The values of all of them."""
    return {name: p.detach() for name, p in named.items()}


def gradients(named: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """The gradients of all of them; zeros where one has none."""
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in named.items()}


def with_loss(tensors: dict[str, Tensor], loss: Tensor) -> dict[str, Tensor]:
    """The tensors, and the loss."""
    return tensors | {"the last loss": loss.detach()}

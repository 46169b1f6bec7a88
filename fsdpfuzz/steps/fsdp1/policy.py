"""Policies that name modules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from torch import nn
from torch.distributed.fsdp.wrap import CustomPolicy, lambda_auto_wrap_policy


def chosen(units: Mapping[nn.Module, bool | dict[str, Any]]) -> CustomPolicy:
    """Makes these modules units, each with the options that differ from the root's."""
    return CustomPolicy(lambda module: units.get(module, False))


def among(units: Collection[nn.Module]) -> Callable[..., bool]:
    """Makes these modules units."""
    return partial(lambda_auto_wrap_policy, lambda_fn=lambda module: module in units)

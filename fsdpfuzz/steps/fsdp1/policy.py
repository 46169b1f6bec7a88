"""``CustomPolicy``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.distributed.fsdp.wrap import CustomPolicy


def chosen(units: Mapping[nn.Module, bool | dict[str, Any]]) -> CustomPolicy:
    """Makes these modules units, each with the options that differ from the root's."""
    return CustomPolicy(lambda module: units.get(module, False))

"""Freezing and unfreezing on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn


def require_grad(
    named: Mapping[str, nn.Parameter], names: Sequence[str], value: bool, some: bool = False
) -> None:
    """Sets ``requires_grad``; ``some`` says that not every name need be there."""
    for name in names:
        if not some or name in named:
            named[name].requires_grad_(value)

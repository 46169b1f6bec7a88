"""Gradients that the user drops, of some parameters only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn


def drop(named: Mapping[str, nn.Parameter], names: Sequence[str]) -> None:
    """Sets the gradients of these parameters to None."""
    for name in names:
        named[name].grad = None

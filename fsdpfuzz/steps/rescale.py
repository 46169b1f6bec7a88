"""Parameters that the user scales, without telling FSDP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

SCALE = 0.75
"""By which they are multiplied."""


def scale(named: Mapping[str, nn.Parameter], names: Sequence[str]) -> None:
    """Multiplies these parameters in place."""
    for name in names:
        named[name].detach().mul_(SCALE)


# FSDP1 tells by its storage that a parameter is no longer a part of the flat one
# (``FlatParamHandle._writeback_orig_params`` in fsdp/_flat_param.py).
def replace(named: Mapping[str, nn.Parameter], names: Sequence[str]) -> None:
    """Multiplies these parameters into new tensors, which their ``data`` is set to."""
    for name in names:
        named[name].data = named[name].data * SCALE

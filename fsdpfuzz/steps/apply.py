"""``module.apply`` with a function that changes what each module trains of its own."""

from __future__ import annotations

from torch import nn

from fsdpfuzz.steps.rescale import SCALE

NEARER = 0.25
"""The part of the way to their mean that values are moved."""


def scaled(module: nn.Module) -> None:
    """Parameters are multiplied."""

    def scale(each: nn.Module) -> None:
        for own in each.parameters(recurse=False):
            if own.requires_grad:
                own.detach().mul_(SCALE)

    module.apply(scale)


# A mean comes out otherwise where a rank takes a part for the whole. And going nearer to it makes
# no deviation larger.
def smoothed(module: nn.Module) -> None:
    """The values of each parameter are moved towards their mean."""

    def smooth(each: nn.Module) -> None:
        for own in each.parameters(recurse=False):
            if own.requires_grad:
                own.detach().lerp_(own.detach().mean(), NEARER)

    module.apply(smooth)

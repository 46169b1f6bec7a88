"""Functions that change what modules train of their own."""

from __future__ import annotations

import torch
from torch import nn

from fsdpfuzz.steps.apply import scaled, smoothed


def tied() -> tuple[nn.Linear, nn.Linear]:
    """The first has a frozen bias; both have the same weight."""
    first, second = nn.Linear(2, 2), nn.Linear(2, 2, bias=False)
    first.bias.requires_grad_(False)
    second.weight = first.weight
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[0.0, 16.0], [32.0, 48.0]]))
        first.bias.fill_(16.0)
    return first, second


def test_each_module_that_has_a_parameter_scales_it() -> None:
    first, second = tied()
    scaled(nn.Sequential(first, second))
    assert first.weight.tolist() == [[0.0, 9.0], [18.0, 27.0]]
    assert first.bias.tolist() == [16.0, 16.0]


def test_a_module_alone_moves_its_parameter_towards_the_mean() -> None:
    first, second = tied()
    smoothed(second)
    assert first.weight.tolist() == [[6.0, 18.0], [30.0, 42.0]]

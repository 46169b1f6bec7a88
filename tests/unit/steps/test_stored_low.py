"""Layers that are stored in bfloat16 and cast what they are given."""

from __future__ import annotations

import copy

import torch
from torch import nn

from fsdpfuzz.steps.stored_low import store


def test_it_computes_in_bfloat16_and_puts_out_what_it_was_given() -> None:
    layer = nn.Linear(2, 3)
    right = layer.weight.detach().to(torch.bfloat16)
    store(layer, torch.float32)
    assert torch.equal(layer.weight, right)
    x = torch.randn(1, 2)
    assert layer(x).dtype == torch.float32
    assert torch.equal(layer(x), nn.functional.linear(x.bfloat16(), right, layer.bias).float())


def test_in_float64_it_has_the_same_values() -> None:
    layer = nn.Linear(2, 3)
    low = layer.weight.detach().to(torch.bfloat16)
    layer.double()
    store(layer, torch.float64)
    assert layer.weight.dtype == torch.float64
    assert torch.equal(layer.weight, low.double())


def test_a_copy_computes_with_its_own_weight() -> None:
    layer = nn.Linear(2, 3, bias=False)
    store(layer, torch.float32)
    other = copy.deepcopy(layer)
    with torch.no_grad():
        layer.weight.zero_()
    x = torch.ones(1, 2)
    assert layer(x).abs().max() == 0.0
    assert other(x).abs().max() > 0.0

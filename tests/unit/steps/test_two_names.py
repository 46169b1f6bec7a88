"""One layer that is an attribute twice."""

from __future__ import annotations

import torch

from fsdpfuzz.steps.modules.two_names import TwoNames


def test_both_names_are_one_layer() -> None:
    torch.manual_seed(0)
    module = TwoNames(2)
    assert module.again is module.layer
    assert [name for name, _ in module.named_modules()] == ["", "layer"]
    assert set(module.state_dict()) == {
        f"{name}.{part}" for name in ("layer", "again") for part in ("weight", "bias")
    }
    x = torch.tensor([[1.0, -2.0]])
    assert torch.equal(module(x), module.layer(torch.tanh(module.layer(x))))


def test_without_a_bias() -> None:
    assert set(TwoNames(2, bias=False).state_dict()) == {"layer.weight", "again.weight"}

"""Extra state as entries of a state dict, changed everywhere and taken from a whole model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fsdpfuzz.steps.extra_state import blank, entries, forms, held
from fsdpfuzz.steps.modules.extra_state import ExtraState


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), ExtraState(counts=True), ExtraState(as_dict=True))


def test_what_is_in_a_dict_has_entries_of_its_own() -> None:
    found = entries(model().state_dict())
    assert list(found) == [
        "0.weight",
        "0.bias",
        "1._extra_state",
        "2._extra_state.quarters",
        "2._extra_state.calls",
    ]
    assert all(isinstance(value, torch.Tensor) for value in found.values())
    assert forms(model())["2._extra_state.calls"] == ((), torch.int64)
    assert list(held(model())) == list(found)[2:]
    assert list(held(ExtraState())) == ["_extra_state"]


def test_a_blank_model_differs_in_each_entry() -> None:
    given, changed = model(), model()
    for one in (given, changed):
        nn.init.ones_(next(one.parameters()))
        one(torch.ones(1, 2))
    right, found = entries(given.state_dict()), entries(blank(changed).state_dict())
    assert all(bool((found[key] != value).all()) for key, value in right.items())
    changed.load_state_dict(given.state_dict())
    found = entries(changed.state_dict())
    assert all(torch.equal(found[key], value) for key, value in right.items())


@pytest.mark.parametrize("as_dict", [False, True])
def test_the_output_hangs_on_what_is_saved(as_dict: bool) -> None:
    module, x = ExtraState(as_dict=as_dict, counts=True), torch.ones(2)
    # Not in train mode: there a recomputation would come to another output.
    assert [module(x)[0].item() for _ in range(2)] == [0.75, 0.75]
    assert module.eval()(x)[0].item() == 1.25
    assert module.calls == 2
    other = ExtraState(as_dict=as_dict, counts=True).eval()
    other.load_state_dict(module.state_dict())
    assert other(x)[0].item() == 1.25

"""What a parametrized layer says and refuses, and that policies take it for its own class."""

from __future__ import annotations

from typing import Any

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Sequential,
    anatomy,
    check,
    decode,
    encode,
    features,
    is_sound,
)
from fsdpfuzz.case.modules import Parametrized
from fsdpfuzz.errors import CaseError
from fsdpfuzz.reduce.tree import smaller_models

ROOT = Fsdp2Plan(units=(Fsdp2Unit(path=""),))
BY_CLASS = Fsdp1Plan(units=(Fsdp1Unit(path=""),), wrap="module_classes", classes=("linear",))


def case(*modules: Any, width: int = 3, **changes: Any) -> CaseSpec:
    values: dict[str, Any] = {
        "world_size": 2,
        "model": Sequential(children=modules),
        "inputs": Dense(width=width),
        "plan": ROOT,
        "program": (Forward(), Backward()),
    }
    return CaseSpec(**values | changes)


@pytest.mark.parametrize(
    ("form", "width", "out"),
    [("weight_norm", 1, 4), ("weight_norm_dim1", 4, 1), ("orthogonal", 1, 1)],
)
def test_directions_of_one_element_are_refused(form: Any, width: int, out: int) -> None:
    with pytest.raises(CaseError, match="has no gradient"):
        check(case(Parametrized(out=out, form=form), width=width))
    check(case(Parametrized(out=out + 1, form=form), width=width + 1))


def test_its_feature_says_by_what_weights_are_computed() -> None:
    layers = (Parametrized(out=4), Parametrized(out=4, form="orthogonal"))
    assert features(case(Linear(out=4)))["parametrized"] == "no"
    assert [features(case(layer))["parametrized"] for layer in layers] == [
        "weight_norm",
        "orthogonal",
    ]
    assert features(case(*layers))["parametrized"] == "orthogonal"


def test_a_policy_takes_it_for_a_linear_layer() -> None:
    both = case(Linear(out=4), Parametrized(out=4), plan=BY_CLASS)
    assert is_sound(both)
    a = anatomy(both)
    assert a.units == ("", "0", "1")
    held = "1.parametrizations.weight.original"
    assert [p.fqn for p in a.owned["1"]] == ["1.bias", f"{held}0", f"{held}1"]


def test_it_is_kept_as_it_is_and_reduced_to_a_linear_layer() -> None:
    given = case(Parametrized(out=4, form="weight_norm_dim1"), Linear(out=2))
    assert decode(encode(given)) == given
    smaller = [found.model for found in smaller_models(given)]
    assert Sequential(children=(Linear(out=4, bias=False), Linear(out=2))) in smaller
    assert Sequential(children=(Parametrized(out=4), Linear(out=2))) in smaller


def test_what_is_said_of_its_parameters_goes_to_the_layer_in_its_place() -> None:
    frozen = ("0.parametrizations.weight.original1",)
    given = case(Parametrized(out=4, bias=False), Linear(out=2), frozen=frozen)
    layers = Sequential(children=(Linear(out=4, bias=False), Linear(out=2)))
    (plain,) = [found for found in smaller_models(given) if found.model == layers]
    assert plain.frozen == ("0.weight",)

"""A gradient divide factor: who is told of it, what the plain model does, where it can run."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Plan,
    Precision,
    Rebuild,
    RequiresGrad,
    Sequential,
    anatomy,
    check,
    decode,
    encode,
    features,
    lower,
    needs_gpu,
    unit_features,
)
from fsdpfuzz.case.divide_factor import DivideFactor, DivideFactorDimension
from fsdpfuzz.case.mesh import Mesh
from fsdpfuzz.case.recipe import MODEL, Do, Inside, Variable, call, literal, walk
from fsdpfuzz.errors import CaseError
from tests.unit.case.test_units import fsdp1, fsdp2, make

LAYERS = Sequential(children=(Linear(out=3), Linear(out=2, bias=False)))
FACTOR, SUMS = ".set_gradient_divide_factor", ".set_force_sum_reduction_for_comms"
SCALED = "steps.averaging.scaled"


def divided(told: DivideFactor | None, plan: Plan | None = None, **changes: object) -> CaseSpec:
    made = make(plan or fsdp2("", "0"), model=LAYERS, program=(Forward(), Backward()))
    return msgspec.structs.replace(made, **{"divide_factor": told, **changes})


@pytest.mark.parametrize(
    ("told", "factor", "apart"),
    [
        (None, "no", "off"),
        (DivideFactor(factor=2.0), "ranks", "off"),
        (DivideFactor(factor=3.0), "other", "off"),
        (DivideFactor(factor=2.0, force_sum=True), "ranks", "on"),
        (DivideFactor(force_sum=True), "sums", "on"),
    ],
)
def test_its_features(told: DivideFactor | None, factor: str, apart: str) -> None:
    case = divided(told)
    check(case)
    assert decode(encode(case)) == case
    assert (features(case)["divide_factor"], features(case)["divided_apart"]) == (factor, apart)
    assert "divide_factor" not in features(divided(None, fsdp1("")))


@pytest.mark.parametrize(
    ("precision", "apart"),
    [
        (Precision(param="float16"), "on"),
        (Precision(reduce="float16"), "on"),
        (Precision(param="float16", reduce="float32"), "off"),
        (Precision(param="bfloat16"), "off"),
    ],
)
def test_float16_is_divided_apart(precision: Precision, apart: str) -> None:
    plan = Fsdp2Plan(units=(Fsdp2Unit(path="", precision=precision),))
    assert features(divided(DivideFactor(factor=3.0), plan))["divided_apart"] == apart
    assert features(divided(None, plan))["divided_apart"] == "off"


@pytest.mark.parametrize(
    ("precision", "told", "low"),
    [
        (Precision(param="bfloat16"), DivideFactor(factor=3.0), "on"),
        (Precision(reduce="bfloat16"), DivideFactor(factor=3.0), "on"),
        (Precision(param="bfloat16", reduce="float32"), DivideFactor(factor=3.0), "off"),
        (None, DivideFactor(factor=3.0), "off"),
        (Precision(param="float16"), DivideFactor(factor=3.0), "off"),
        # The mean, which needs no factor; FSDP's own division; none that was asked for.
        (Precision(param="bfloat16"), DivideFactor(factor=2.0), "off"),
        (Precision(param="bfloat16"), DivideFactor(factor=3.0, force_sum=True), "off"),
        (Precision(param="bfloat16"), None, "off"),
    ],
)
def test_a_collective_divides_in_the_dtype_of_the_reduction(
    precision: Precision | None, told: DivideFactor | None, low: str
) -> None:
    plan = Fsdp2Plan(units=(Fsdp2Unit(path="", precision=precision),))
    assert unit_features(anatomy(divided(told, plan)), "")["divided_low"] == low


def test_fsdp1_has_none() -> None:
    with pytest.raises(CaseError) as caught:
        check(divided(DivideFactor(factor=2.0), fsdp1("")))
    assert caught.value.path == "$.divide_factor"


def test_sums_alone_leave_the_number_as_it_is() -> None:
    told = DivideFactor(force_sum=True)
    recipe = lower(anatomy(divided(told)))
    for target in (Inside("model", "0"), MODEL):
        assert Do(call=call(SUMS, target, True), who="fsdp") in recipe.procedures[1].body
    told_nothing = lower(anatomy(divided(None)))
    assert recipe.main == told_nothing.main
    more = [do for do in recipe.procedures[1].body if do not in told_nothing.procedures[1].body]
    assert len(more) == 2
    assert told.words() == "ranks, sums only"
    found = list(DivideFactorDimension().simpler(divided(told)))
    assert [(s.case.divide_factor, s.words) for s in found] == [(None, SUMS.removeprefix("."))]
    with pytest.raises(CaseError, match="neither a factor nor sums only"):
        check(divided(DivideFactor()))


@pytest.mark.parametrize("value", ["0.0", "-1.0", "1e9"])
def test_what_is_no_factor_is_refused(value: str) -> None:
    given = encode(divided(DivideFactor(factor=2.0)))
    with pytest.raises(CaseError):
        decode(given.replace(b'"factor":2.0', f'"factor":{value}'.encode()))


def test_units_are_told_wherever_they_are_made_and_the_plain_model_once() -> None:
    told = DivideFactor(factor=0.5, force_sum=True)
    program = (Forward(), Backward(), Rebuild(plan=fsdp2("")), Forward(), Backward())
    recipe = lower(anatomy(divided(told, program=program)))
    for procedure, targets in zip(
        recipe.procedures[1:], ((Inside("model", "0"), MODEL), (MODEL,)), strict=True
    ):
        for target in targets:
            for tell in (call(FACTOR, target, 0.5), call(SUMS, target, True)):
                assert Do(call=tell, who="fsdp") in procedure.body
    scaled = Do(call=call(SCALED, call(".parameters", MODEL), 4.0), who="reference")
    assert list(walk(recipe.main)).count(scaled) == 1


def test_what_no_unit_manages_is_not_divided() -> None:
    plan = Fsdp2Plan(units=(Fsdp2Unit(path="", ignored=("0",)),))
    recipe = lower(anatomy(divided(DivideFactor(factor=1.0), plan)))
    managed = call("steps.names.others", Variable("named"), literal(["0.bias", "0.weight"]))
    assert Do(call=call(SCALED, managed, 2.0), who="reference") in recipe.main


@pytest.mark.parametrize(
    "changes",
    [
        {"frozen": ("0.bias",)},
        {"program": (RequiresGrad(parameters=("0.bias",), value=False), Forward(), Backward())},
    ],
)
def test_what_is_frozen_may_be_trained_some_day(changes: dict[str, object]) -> None:
    recipe = lower(anatomy(msgspec.structs.replace(divided(DivideFactor(factor=1.0)), **changes)))
    scaled = call(SCALED, call(".parameters", MODEL), 2.0, freezes=True)
    assert Do(call=scaled, who="reference") in recipe.main


@pytest.mark.parametrize(
    ("told", "mesh", "gpu"),
    [
        (None, None, False),
        (DivideFactor(factor=3.0), None, True),
        (DivideFactor(factor=3.0, force_sum=True), None, False),
        (DivideFactor(force_sum=True), None, False),
        (DivideFactor(factor=2.0), None, False),
        (DivideFactor(factor=3.0), Mesh(replicate=2, shard=1), False),
    ],
)
def test_only_what_gloo_can_divide_runs_without_a_gpu(
    told: DivideFactor | None, mesh: Mesh | None, gpu: bool
) -> None:
    assert bool(needs_gpu(anatomy(divided(told, mesh=mesh)))) is gpu


def test_none_then_without_sums_then_one_are_plainer() -> None:
    told = DivideFactor(factor=3.0, force_sum=True)
    found = list(DivideFactorDimension().simpler(divided(told)))
    assert [(s.case.divide_factor, s.words) for s in found] == [
        (None, "set_gradient_divide_factor"),
        (DivideFactor(factor=3.0), "set_force_sum_reduction_for_comms"),
        (DivideFactor(factor=1.0, force_sum=True), ""),
    ]
    assert not list(DivideFactorDimension().simpler(divided(None)))


def test_its_words_and_a_case_without_it() -> None:
    case = divided(DivideFactor(factor=0.5, force_sum=True))
    assert list(DivideFactorDimension().facts(case)) == [("divided by", "0.5, sums only")]
    assert DivideFactor(factor=3.0).words() == "3"
    assert b"divide_factor" not in encode(divided(None))

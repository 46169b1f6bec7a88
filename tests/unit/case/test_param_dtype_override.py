"""Parameters that keep their own dtype in a unit that computes in another."""

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
    Norm,
    Precision,
    Rebuild,
    Sequential,
    Tie,
    anatomy,
    check,
    decode,
    digest,
    encode,
    features,
    needs_of_torch,
    overrides_fit,
)
from fsdpfuzz.errors import CaseError
from fsdpfuzz.expect import traffic
from fsdpfuzz.reduce import simpler
from fsdpfuzz.repro import Context, render
from tests.unit.case.test_units import make

MODEL = Sequential(children=(Linear(out=3), Norm(variant="rms"), Linear(out=2), Norm()))
LOW = Precision(param="bfloat16")
NEEDED = ("MixedPrecisionPolicy(param_dtype_override_fn)",)


def case(*kept: str, precision: Precision | None = LOW, inner: bool = False) -> CaseSpec:
    units = [Fsdp2Unit(path="", precision=precision, param_dtype_override=kept)]
    units += [Fsdp2Unit(path="1", precision=precision)] if inner else []
    plan = Fsdp2Plan(units=tuple(units))
    return make(plan, model=MODEL, program=(Forward(), Backward()))


def test_it_goes_into_json_and_names_the_torch_that_it_needs() -> None:
    told = case("1.weight")
    check(told)
    assert decode(encode(told)) == told
    assert digest(told) != digest(case())
    assert b"override" not in encode(case())
    assert needs_of_torch(anatomy(told)) == NEEDED
    assert needs_of_torch(anatomy(case())) == ()
    assert features(told)["param_dtype_override"] == "on"


def test_the_policy_is_told() -> None:
    script = render(case("1.weight"), None, Context())
    compile(script, "repro.py", "exec")
    assert "param_dtype_override_fn=" in script
    assert "param_dtype_override_fn" not in render(case(), None, Context())


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (case("1.weight", precision=None), "without param_dtype"),
        (case("1.weight", precision=Precision(reduce="bfloat16")), "without param_dtype"),
        (case("1.weight", inner=True), "1.weight"),
        (case("5.weight"), "5.weight"),
    ],
)
def test_it_is_a_parameter_of_the_unit_that_would_be_cast(told: CaseSpec, text: str) -> None:
    with pytest.raises(CaseError, match=text):
        check(told)


@pytest.mark.parametrize(
    ("kept", "fit"), [("1.weight", True), ("0.weight", False), ("3.weight", False)]
)
def test_it_has_to_take_inputs_of_another_dtype(kept: str, fit: bool) -> None:
    asked = case(kept)
    assert overrides_fit(anatomy(asked)) is fit
    rebuilt = msgspec.structs.replace(case(), program=(Rebuild(plan=asked.plan), Forward()))
    assert overrides_fit(anatomy(rebuilt)) is fit


@pytest.mark.parametrize(
    ("model", "fit"),
    [
        (Sequential(children=(Norm(variant="rms"), Norm(variant="rms"))), True),
        (Sequential(children=(Norm(variant="rms"), Norm())), False),
    ],
)
def test_every_module_of_a_tied_one_has_to(model: Sequential, fit: bool) -> None:
    plan = Fsdp2Plan(units=(Fsdp2Unit(path="", precision=LOW, param_dtype_override=("0.weight",)),))
    tied = make(plan, model=model, ties=(Tie(source="0.weight", target="1.weight"),))
    check(tied)
    assert overrides_fit(anatomy(tied)) is fit


def test_the_case_without_it_is_simpler() -> None:
    assert case() in [neighbour.case for neighbour in simpler(case("1.weight"))]


@pytest.mark.parametrize(
    ("kept", "gathered"),
    [((), "all_gather bfloat16 12"), (("1.weight",), "all_gather uint8 28")],
)
def test_different_dtypes_are_gathered_as_bytes(kept: tuple[str, ...], gathered: str) -> None:
    plan = Fsdp2Plan(units=(Fsdp2Unit(path="", precision=LOW, param_dtype_override=kept),))
    # 20 and 4 elements, of which each of two ranks hands in half.
    model = Sequential(children=(Linear(out=4), Norm(variant="rms")))
    found = traffic(anatomy(make(plan, model=model, program=(Forward(), Backward()))), 0)
    assert set(found[0].numbers) == {gathered}

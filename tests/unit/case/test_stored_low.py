"""Frozen layers stored in bfloat16: what may be, what it costs in bytes, what is plainer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fsdpfuzz.case import (
    ITERATION,
    CaseSpec,
    Dense,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Lora,
    Norm,
    Precision,
    Sequential,
    Switch,
    Tie,
    anatomy,
    check,
    decode,
    encode,
    features,
    foreseen_rejections,
    parameter_features,
    unit_features,
)
from fsdpfuzz.case.modules import Empty
from fsdpfuzz.case.operations import Flip, RequiresGrad, Transfer
from fsdpfuzz.case.stored_low import may_be_stored_low
from fsdpfuzz.errors import CaseError
from fsdpfuzz.expect.bytes import gathered_in, managed_bytes, shard_bytes
from fsdpfuzz.reduce import simpler
from fsdpfuzz.repro import Context, render
from tests.unit.case.test_units import fsdp1

MODEL = Sequential(children=(Lora(out=4, rank=2), Norm(), Linear(out=4), Linear(out=2)))
BASE = ("0.base.weight", "0.base.bias")
FROZEN = (*BASE, "2.weight", "2.bias")


def case(*low: str, units: tuple[str, ...] = ("",), **changes: object) -> CaseSpec:
    precision = changes.pop("precision", None)
    made = tuple(Fsdp2Unit(path=path, precision=precision) for path in units)  # type: ignore[arg-type]
    given = {
        "world_size": 2,
        "model": MODEL,
        "inputs": Dense(width=4, batch=2),
        "plan": Fsdp2Plan(units=made),
        "frozen": FROZEN,
        "stored_low": low,
        "program": ITERATION,
    }
    return CaseSpec(**{**given, **changes})  # type: ignore[arg-type]


def refused(wrong: CaseSpec) -> str:
    with pytest.raises(CaseError) as caught:
        check(wrong)
    return f"{caught.value.path}: {caught.value.reason}"


def test_it_goes_into_json_and_changes_no_other_case() -> None:
    told = case("0.base", "2")
    check(told)
    assert decode(encode(told)) == told
    assert b"stored_low" not in encode(case())


def test_linear_layers_may_be_that_are_frozen_all_along() -> None:
    assert may_be_stored_low(anatomy(case())) == ("0.base", "2")
    unfrozen = (*ITERATION, RequiresGrad(parameters=("2.bias",), value=True), *ITERATION)
    assert may_be_stored_low(anatomy(case(program=unfrozen))) == ("0.base",)
    tied = Tie(source="0.base.bias", target="2.bias")
    assert may_be_stored_low(anatomy(case(ties=(tied,)))) == ()
    flat = Fsdp1Plan(units=(Fsdp1Unit(path=""),))
    assert may_be_stored_low(anatomy(case(plan=flat))) == ("0.base", "2")


@pytest.mark.parametrize("path", ["3", "1", "0.up"])
def test_another_layer_is_refused(path: str) -> None:
    assert refused(case(path)).startswith(
        f"$.stored_low[0]: '{path}' is no linear layer that is frozen"
    )


def test_what_contradicts_itself_is_refused() -> None:
    assert refused(case("2", "2")) == "$.stored_low[1]: '2' stands here twice"
    assert refused(case("7")) == "$.stored_low[0]: the model has no module '7'"
    into = Transfer(into="fsdp1")
    text = "$.program[3].into: fsdp1 flattens none but parameters of one dtype"
    assert refused(case("2", program=(*ITERATION, into))) == text
    kept = Fsdp2Unit(
        path="", precision=Precision(param="float16"), param_dtype_override=("2.weight",)
    )
    wrong = case("2", plan=Fsdp2Plan(units=(kept,)))
    assert refused(wrong) == "$.stored_low: a layer whose unit gathers it in float32"


def test_ranks_do_not_part() -> None:
    branches = (Linear(out=4), Linear(out=4))
    model = Sequential(children=(Switch(children=branches), Linear(out=2)))
    changes: dict[str, Any] = {
        "model": model,
        "frozen": ("0.branches.1.weight", "0.branches.1.bias"),
    }
    low, parted = "0.branches.1", (*ITERATION, Flip(path="0", ranks=(1,)))
    check(case(low, **changes))
    text = "$.program[3]: ranks that part gather the same dtypes"
    assert refused(case(low, program=parted, **changes)) == text


def test_features_say_how_they_lie_to_units() -> None:
    def told(given: CaseSpec, unit: str) -> tuple[str, str]:
        return features(given)["stored_low"], unit_features(anatomy(given), unit)["stored_low"]

    assert told(case(), "") == ("no", "no")
    assert told(case("2"), "") == ("mixed", "mixed")
    assert told(case("2", units=("", "2")), "2") == ("alone", "alone")
    assert told(case("2", units=("", "2")), "") == ("alone", "no")
    assert told(case("0.base", "2", units=("", "2")), "") == ("mixed", "mixed")
    a = anatomy(case("2"))
    assert [parameter_features(a, fqn)["stored_low"] for fqn in ("2.weight", "3.weight")] == [
        "on",
        "off",
    ]


def test_fsdp1_refuses_several_dtypes_in_a_unit() -> None:
    assert foreseen_rejections(anatomy(case("2"))) == ()
    flat = anatomy(case("2", plan=fsdp1("")))
    assert [r.name for r in foreseen_rejections(flat)] == [
        "fsdp1_mixed_requires_grad",
        "fsdp1_mixed_dtypes",
    ]
    assert foreseen_rejections(anatomy(case("2", plan=fsdp1("2", "3")))) == ()


def test_a_flat_parameter_of_fsdp1_has_one_dtype() -> None:
    original = tuple(Fsdp1Unit(path=path, use_orig_params=True) for path in ("2", "3"))
    plan = Fsdp1Plan(units=original)
    plain, low = anatomy(case(plan=plan)), anatomy(case("2", plan=plan))
    # 16 and 4 elements, each at a multiple of 16 bytes: 20 in float32, and 20 in bfloat16 as well.
    assert gathered_in(plain, "2") == ("float32", 10)
    assert gathered_in(low, "2") == ("bfloat16", 10)
    assert gathered_in(low, "3") == gathered_in(plain, "3")
    assert shard_bytes(plain) - shard_bytes(low) == 2 * 10


def test_a_shard_has_half_the_bytes() -> None:
    plain, low = anatomy(case()), anatomy(case("2"))
    # A weight of 4 x 4 and a bias of 4, cut in halves, with two bytes less for each element.
    assert shard_bytes(plain) - shard_bytes(low) == 2 * 10
    assert managed_bytes(low) == shard_bytes(low)


def test_parameters_of_no_unit_count_in_full() -> None:
    left = Fsdp2Unit(path="", ignored_parameters=("2.weight", "2.bias"))
    plan = Fsdp2Plan(units=(left,))
    plain, low = anatomy(case(plan=plan)), anatomy(case("2", plan=plan))
    assert shard_bytes(plain) - shard_bytes(low) == 2 * 20
    assert managed_bytes(plain) == managed_bytes(low)


@pytest.mark.parametrize(
    ("precision", "gathered"),
    [
        (None, ("uint8", 2 * 10 + 4 * 27)),
        (Precision(param="bfloat16"), ("bfloat16", 37)),
        (Precision(param="float32"), ("float32", 37)),
        (Precision(param="float16"), ("float16", 37)),
        (Precision(reduce="bfloat16"), ("uint8", 2 * 10 + 4 * 27)),
    ],
)
def test_several_dtypes_are_gathered_as_bytes(
    precision: Precision | None, gathered: tuple[str, int]
) -> None:
    assert gathered_in(anatomy(case("2", precision=precision)), "") == gathered


def test_what_has_no_element_counts_among_the_dtypes() -> None:
    empty = Sequential(children=(Linear(out=4, bias=False), Empty()))
    given = case("0", model=empty, frozen=("0.weight", "1.rows"))
    assert gathered_in(anatomy(given), "") == ("uint8", 2 * 8)
    plain = msgspec.structs.replace(given, stored_low=())
    assert gathered_in(anatomy(plain), "") == ("float32", 8)


def test_a_unit_by_itself_is_gathered_in_its_dtype() -> None:
    a = anatomy(case("2", units=("", "2")))
    assert gathered_in(a, "2") == ("bfloat16", 10)
    assert gathered_in(a, "")[0] == "float32"


def test_none_is_plainer_and_so_are_fewer() -> None:
    plainer = [s for s in simpler(case("0.base", "2")) if s.case.model == MODEL]
    words = {s.words for s in plainer if not s.case.stored_low and s.case.frozen == FROZEN}
    assert words == {"layers stored in bfloat16"}
    assert {s.case.stored_low for s in plainer if s.case.stored_low} >= {("0.base",), ("2",)}


def test_a_child_that_goes_takes_its_name_along() -> None:
    names = {s.case.stored_low for s in simpler(case("2")) if s.case.model != MODEL}
    assert ("1",) in names
    assert () in names


def test_a_script_stores_them() -> None:
    script = render(case("0.base"), None, Context())
    compile(script, "repro.py", "exec")
    assert "p.data = p.data.to(torch.bfloat16)" in script
    assert "store(model[0].base" in script
    assert "store" not in render(case(), None, Context())
    assert msgspec.structs.replace(case("2"), stored_low=()) == case()

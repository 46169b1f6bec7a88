"""The switches of mixed precision: who has them, what FSDP is told, features."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Dropout,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Given,
    Imported,
    ImportedModule,
    ImportedParameter,
    Inputs,
    Linear,
    Node,
    Optimizer,
    Precision,
    Rebuild,
    Sequential,
    Step,
    Tokens,
    Transformer,
    Unit,
    anatomy,
    check,
    coarsest,
    decode,
    dtypes_fit,
    encode,
    features,
    is_sound,
    needs_gloo,
    stands_alone,
    unit_features,
    with_units,
)
from fsdpfuzz.case.recipe import Global, Value, call
from fsdpfuzz.case.units.precision import PrecisionOption
from fsdpfuzz.errors import CaseError
from tests.unit.case.test_units import make

LAYERS = Sequential(children=(Linear(out=3), Linear(out=2)))
OUT = Precision(param="bfloat16", output="float32")
UNCAST = Precision(param="bfloat16", cast_inputs=False)


def with_policies(root: Precision | None, inner: Precision | None) -> CaseSpec:
    units = (Fsdp2Unit(path="", precision=root), Fsdp2Unit(path="0", precision=inner))
    return make(Fsdp2Plan(units=units), model=LAYERS, program=(Forward(), Backward()))


@pytest.mark.parametrize(
    ("root", "inner", "output", "uncast"),
    [
        (None, None, "off", "off"),
        (OUT, None, "on", "off"),
        (None, OUT, "on", "off"),
        (Precision(param="bfloat16"), UNCAST, "off", "on"),
    ],
)
def test_features(
    root: Precision | None, inner: Precision | None, output: str, uncast: str
) -> None:
    case = with_policies(root, inner)
    check(case)
    assert decode(encode(case)) == case
    found = features(case)
    assert (found["precision_output"], found["input_casts"]) == (output, uncast)
    assert unit_features(anatomy(case), "0")["precision_output"] == (
        "on" if inner is OUT else "off"
    )
    assert unit_features(anatomy(case), "0")["input_casts"] == uncast


SWITCHED = Precision(
    param="bfloat16", cast_inputs=True, cast_root_inputs=False, keep_low_grads=True
)


def first(given: Precision | None, **changes: object) -> CaseSpec:
    plan = Fsdp1Plan(units=(Fsdp1Unit(path=""), Fsdp1Unit(path="0", precision=given)))
    return make(plan, model=LAYERS, program=(Forward(), Backward()), **changes)


def test_switches_of_fsdp1() -> None:
    case = first(SWITCHED)
    check(case)
    assert decode(encode(case)) == case
    told = dict.fromkeys(("input_casts", "uncast_root", "low_grads"), "on")
    assert told.items() <= features(case).items()
    assert told.items() <= unit_features(anatomy(case), "0").items()
    assert not told.items() & unit_features(anatomy(case), "").items()
    assert {"precision_output"}.isdisjoint(features(case))


@pytest.mark.parametrize(
    ("wrong", "at"),
    [
        (first(OUT), "[1].precision.output"),
        (first(UNCAST), "[1].precision.cast_inputs"),
        (with_policies(None, Precision(cast_root_inputs=False)), "[1].precision.cast_root_inputs"),
        (with_policies(Precision(keep_low_grads=True), None), "[0].precision.keep_low_grads"),
        (with_policies(Precision(cast_inputs=True), None), "[0].precision.cast_inputs"),
    ],
)
def test_what_the_api_lacks_or_does_anyway_is_named(wrong: CaseSpec, at: str) -> None:
    with pytest.raises(CaseError) as caught:
        check(wrong)
    assert caught.value.path == f"$.plan.units{at}"


@pytest.mark.parametrize(
    ("optimizer", "goes"),
    [
        (Optimizer(foreach=False), True),
        (Optimizer(), False),
        (Optimizer(name="adam", foreach=False), False),
    ],
)
def test_low_gradients_go_with_what_steps_by_them(optimizer: Optimizer, goes: bool) -> None:
    for program, sound in (
        ((Forward(), Backward(), Step()), goes),
        ((Forward(), Backward()), True),
    ):
        case = msgspec.structs.replace(first(SWITCHED), optimizer=optimizer, program=program)
        assert is_sound(case) is sound


@pytest.mark.parametrize(
    ("unit", "told"),
    [
        (
            Fsdp2Unit(path="", precision=OUT),
            {"param_dtype": "bfloat16", "output_dtype": "float32"},
        ),
        (
            Fsdp2Unit(path="", precision=UNCAST),
            {"param_dtype": "bfloat16", "cast_forward_inputs": False},
        ),
        (Fsdp2Unit(path="", precision=Precision(param="float16")), {"param_dtype": "float16"}),
        (
            Fsdp1Unit(path="", precision=SWITCHED),
            {
                "param_dtype": "bfloat16",
                "cast_forward_inputs": True,
                "cast_root_forward_inputs": False,
                "keep_low_precision_grads": True,
            },
        ),
    ],
)
def test_what_fsdp_is_told(unit: Unit, told: dict[str, object]) -> None:
    def value(one: object) -> Value:
        return Global(f"torch.{one}") if isinstance(one, str) else bool(one)

    second = isinstance(unit, Fsdp2Unit)
    options = {name: value(one) for name, one in told.items()}
    kind = "MixedPrecisionPolicy" if second else "MixedPrecision"
    argument = "mp_policy" if second else "mixed_precision"
    policy = call(f"torch.distributed.fsdp.{kind}", **options)
    assert list(PrecisionOption().argument(unit, unit.precision)) == [(argument, policy)]


def test_a_low_output_counts_for_what_rounding_explains() -> None:
    low = with_policies(Precision(output="bfloat16"), None)
    assert coarsest(anatomy(low)) == "bfloat16"
    assert coarsest(anatomy(with_policies(OUT, None))) == "bfloat16"
    assert coarsest(anatomy(with_policies(None, None))) == "float32"


def test_none_then_each_switch_as_pytorch_has_it_is_plainer() -> None:
    both = msgspec.structs.replace(OUT, cast_inputs=False)
    found = [(s.case, s.words) for s in PrecisionOption().simpler(with_policies(None, both))]
    assert found == [
        (with_policies(None, None), "mixed precision"),
        (with_policies(None, UNCAST), "output_dtype"),
        (with_policies(None, OUT), "cast_forward_inputs"),
        (with_units(with_policies(None, None), (Fsdp2Unit(path="", precision=both),)), ""),
    ]
    words = [s.words for s in PrecisionOption().simpler(first(SWITCHED))]
    assert words == [
        "mixed precision",
        "cast_forward_inputs",
        "cast_root_forward_inputs",
        "keep_low_precision_grads",
    ]


def test_words_and_a_policy_without_them() -> None:
    assert PrecisionOption().words(OUT) == "precision(param bfloat16, output float32)"
    told = "precision(param bfloat16, cast_forward_inputs=False)"
    assert PrecisionOption().words(UNCAST) == told
    plain = encode(with_policies(Precision(param="bfloat16"), None))
    for field in (b"output", b"cast_inputs", b"cast_root_inputs", b"keep_low_grads"):
        assert field not in plain


@pytest.mark.parametrize(
    ("inner", "root", "fit"),
    [
        (None, None, True),
        (Precision(param="bfloat16"), Precision(param="bfloat16"), True),
        (Precision(param="bfloat16"), None, False),
        (OUT, None, True),
        (OUT, Precision(param="bfloat16"), False),
        (UNCAST, Precision(param="bfloat16"), True),
        (Precision(param="bfloat16", output="float32", cast_inputs=False), None, False),
        (None, Precision(param="float16"), False),
        (Precision(output="float16"), Precision(param="float16"), True),
    ],
)
def test_a_unit_has_to_fit_into_the_one_around_it(
    inner: Precision | None, root: Precision | None, fit: bool
) -> None:
    units = (Fsdp2Unit(path="0", precision=inner), Fsdp2Unit(path="", precision=root))
    plan = Fsdp2Plan(units=units)
    assert dtypes_fit(anatomy(make(plan, model=LAYERS))) is fit
    plain = Fsdp2Plan(units=(Fsdp2Unit(path=""),))
    rebuilt = make(plain, model=LAYERS, program=(Rebuild(plan=plan),))
    assert dtypes_fit(anatomy(rebuilt)) is fit


@pytest.mark.parametrize(
    ("told", "fit"),
    [
        (Precision(param="bfloat16"), True),
        (Precision(param="bfloat16", cast_root_inputs=False), False),
        (Precision(param="bfloat16", cast_root_inputs=False, cast_inputs=True), True),
        (Precision(reduce="bfloat16", cast_root_inputs=False), True),
    ],
)
def test_someone_casts_the_inputs_of_the_root_of_fsdp1(told: Precision, fit: bool) -> None:
    plan = Fsdp1Plan(units=(Fsdp1Unit(path="", precision=told),))
    assert dtypes_fit(anatomy(make(plan, model=LAYERS))) is fit


def test_someone_casts_the_inputs_of_the_root_of_fsdp2() -> None:
    for told, fit in ((UNCAST, False), (Precision(param="bfloat16"), True)):
        plan = Fsdp2Plan(units=(Fsdp2Unit(path="", precision=told),))
        assert dtypes_fit(anatomy(make(plan, model=LAYERS))) is fit


@pytest.mark.parametrize(
    ("told", "fit"),
    [
        (Precision(param="bfloat16"), False),
        (Precision(param="bfloat16", output="float32"), True),
        (Precision(reduce="bfloat16"), True),
        (None, True),
    ],
)
def test_nobody_casts_the_inputs_of_a_layer_in_no_unit(told: Precision | None, fit: bool) -> None:
    plan = Fsdp2Plan(units=(Fsdp2Unit(path="0", precision=told),))
    assert dtypes_fit(anatomy(make(plan, model=LAYERS))) is fit
    both = Fsdp2Plan(units=(*plan.units, Fsdp2Unit(path="1", precision=told)))
    assert dtypes_fit(anatomy(make(both, model=LAYERS)))


@pytest.mark.parametrize(
    ("param", "asked", "fit"),
    [("bfloat16", True, False), ("bfloat16", False, True), (None, True, True)],
)
def test_a_unit_whose_dtype_is_asked_for_from_outside(
    param: Literal["bfloat16"] | None, asked: bool, fit: bool
) -> None:
    weight = (ImportedParameter(name="weight", shape=(4, 4)),)
    own = Imported(
        target="mine.py",
        modules=(
            ImportedModule(path="", alone=True),
            ImportedModule(path="0", alone=True, parameters=weight, dtype_asked=asked),
        ),
    )
    told = Precision(param=param, reduce="float32")
    units = Fsdp2Unit(path="0", precision=told), Fsdp2Unit(path="", precision=told)
    case = msgspec.structs.replace(make(Fsdp2Plan(units=units)), model=own, inputs=Given())
    assert dtypes_fit(anatomy(case)) is fit


def test_inner_units_of_fsdp1_cast_inputs_if_told_and_outputs_never() -> None:
    half = Precision(param="float16", cast_inputs=True)
    for root, fit in ((half, True), (None, False)):
        units = (Fsdp1Unit(path="0", precision=half), Fsdp1Unit(path="", precision=root))
        assert dtypes_fit(anatomy(make(Fsdp1Plan(units=units), model=LAYERS))) is fit
    units = (Fsdp1Unit(path="0", precision=half), Fsdp1Unit(path="1"))
    assert dtypes_fit(anatomy(make(Fsdp1Plan(units=units), model=LAYERS)))


@pytest.mark.parametrize(
    ("cast", "replicated", "alone"),
    [(None, True, True), (False, True, False), (False, False, False), (None, False, True)],
)
def test_a_root_below_a_replicated_one_casts_its_own_inputs_or_is_not_called_alone(
    cast: Literal[False] | None, replicated: bool, alone: bool
) -> None:
    low = Precision(param="bfloat16", output="bfloat16" if cast is False else "float32")
    inner = msgspec.structs.replace(low, cast_inputs=cast)
    units = (
        Fsdp2Unit(path="", replicated=replicated, precision=low),
        Fsdp2Unit(path="0", precision=inner),
    )
    a = anatomy(make(Fsdp2Plan(units=units), model=LAYERS, program=(Forward(target="0"),)))
    assert ("0" in a.roots) is replicated
    assert stands_alone(a, "0") is alone


@pytest.mark.parametrize(
    ("model", "low", "expected"),
    [
        (Sequential(children=(Linear(out=4), Dropout())), "1", True),
        (Sequential(children=(Linear(out=4), Dropout())), "0", False),
        (Sequential(children=(Linear(out=4), Dropout(p=0.0))), "1", False),
        (Transformer(rows=2, width=4, dropout=0.1), "transformer.encoder.layers.0", True),
        (Sequential(children=(Linear(out=4), Linear(out=4))), "1", False),
    ],
)
def test_a_gpu_draws_other_masks_in_a_lower_dtype(model: Node, low: str, expected: bool) -> None:
    plan = Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path=low, precision=OUT)))
    inputs: Inputs = Tokens(length=1) if isinstance(model, Transformer) else Dense(width=4)
    a = anatomy(make(plan, model=model, inputs=inputs, program=(Forward(), Backward())))
    assert ("other masks" in needs_gloo(a)) is expected
    plain = with_units(a.case, tuple(Fsdp2Unit(path=path) for path in ("", low)))
    assert needs_gloo(anatomy(plain)) == ""

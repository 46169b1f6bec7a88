"""Parameters that say what is gathered of them: which may, what it costs, what is plainer."""

from __future__ import annotations

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
    Op,
    Optimizer,
    Precision,
    Sequential,
    Tie,
    anatomy,
    check,
    decode,
    encode,
    features,
    parameter_features,
    unit_features,
)
from fsdpfuzz.case.extensions import Extension, may_be_extended
from fsdpfuzz.case.mesh import Mesh
from fsdpfuzz.case.meta_init import MetaInit
from fsdpfuzz.case.operations import Rebuild, Transfer
from fsdpfuzz.case.wrap import Plan
from fsdpfuzz.errors import CaseError
from fsdpfuzz.expect.bytes import gathered_in, shard_bytes, whole_bytes
from fsdpfuzz.reduce import simpler
from fsdpfuzz.repro import Context, render

MODEL = Sequential(children=(Linear(out=5), Linear(out=4)))


def plan(*units: Fsdp2Unit) -> Plan:
    return Fsdp2Plan(units=units or (Fsdp2Unit(path="0"), Fsdp2Unit(path="")))


def case(*told: tuple[str, str], **changes: object) -> CaseSpec:
    given: dict[str, object] = {
        "world_size": 2,
        "model": MODEL,
        "inputs": Dense(width=3),
        "plan": plan(),
        "extensions": tuple(Extension(parameter=p, sends=s) for p, s in told),  # type: ignore[arg-type]
        "program": ITERATION,
    }
    return CaseSpec(**{**given, **changes})  # type: ignore[arg-type]


SPLIT, WIDER = ("0.weight", "split"), ("1.weight", "wider")


def refused(wrong: CaseSpec) -> str:
    with pytest.raises(CaseError) as caught:
        check(wrong)
    return f"{caught.value.path}: {caught.value.reason}"


def test_it_goes_into_json_and_changes_no_other_case() -> None:
    told = case(SPLIT, WIDER)
    check(told)
    assert decode(encode(told)) == told
    assert b"extensions" not in encode(case())


def test_parameters_may_that_a_unit_of_fsdp2_has_by_one_name() -> None:
    def allowed(**changes: object) -> tuple[str, ...]:
        return may_be_extended(anatomy(case(**changes)))

    everything = ("0.weight", "0.bias", "1.weight", "1.bias")
    assert allowed() == everything
    assert allowed(plan=Fsdp1Plan(units=(Fsdp1Unit(path=""),))) == ()
    assert allowed(plan=plan(Fsdp2Unit(path="0"))) == everything[:2]
    low: dict[str, object] = {"frozen": everything[2:], "stored_low": ("1",)}
    assert allowed(**low) == everything[:2]
    same = Sequential(children=(Linear(out=3), Linear(out=3)))
    tie = Tie(source="0.weight", target="1.weight")
    assert allowed(model=same, ties=(tie,)) == ("0.bias", "1.bias")
    part = plan(Fsdp2Unit(path="0", reshard_after_forward=2), Fsdp2Unit(path=""))
    assert allowed(world_size=4, plan=part) == everything[2:]
    assert allowed(world_size=2, plan=part) == everything
    later = Rebuild(plan=plan(Fsdp2Unit(path="1")))
    assert allowed(program=(*ITERATION, later)) == everything[2:]


@pytest.mark.parametrize(
    ("told", "changes", "text"),
    [
        ((SPLIT, SPLIT), {}, "$.extensions[1]: '0.weight' stands here twice"),
        ((("2.bias", "split"),), {}, "$.extensions[0]: the model has no parameter '2.bias'"),
        (
            (WIDER,),
            {"plan": plan(Fsdp2Unit(path="0")), "optimizer": Optimizer(foreach=False)},
            "$.extensions[0].parameter: '1.weight' is no float32 parameter that, under each plan, "
            "a unit of fsdp2 has by one name, sharded or whole after forward",
        ),
        (
            (SPLIT,),
            {"meta_init": MetaInit(by="assign")},
            "$.extensions: assign puts other tensors in their place",
        ),
        (
            (SPLIT,),
            {"probes": ("mem_tracker",)},
            "$.extensions: the memory tracker counts no tensors within tensors",
        ),
        (
            (SPLIT,),
            {"program": (*ITERATION, Transfer())},
            "$.program[3]: DCP loads plain tensors alone",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    told: tuple[tuple[str, str], ...], changes: dict[str, object], text: str
) -> None:
    assert refused(case(*told, **changes)) == text


def test_what_is_materialised_in_place_stays_what_it_is() -> None:
    check(case(SPLIT, meta_init=MetaInit()))


def test_features_say_what_is_said() -> None:
    assert features(case())["extensions"] == "no"
    assert features(case(SPLIT))["extensions"] == "split"
    assert features(case(WIDER))["extensions"] == "wider"
    assert features(case(SPLIT, WIDER))["extensions"] == "mixed"
    a = anatomy(case(SPLIT))
    assert [unit_features(a, unit)["extensions"] for unit in ("0", "")] == ["split", "no"]
    told = [parameter_features(a, fqn)["extension"] for fqn in ("0.weight", "0.bias")]
    assert told == ["split", "no"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "off"),
        ({"world_size": 1}, "on"),
        ({"mesh": Mesh(replicate=2, shard=1)}, "on"),
        ({"plan": plan(Fsdp2Unit(path="", replicated=True))}, "on"),
    ],
)
def test_two_parts_on_one_rank_are_told_of(changes: dict[str, object], expected: str) -> None:
    for told, value in ((SPLIT, expected), (("0.weight", "wider"), "off")):
        a = anatomy(case(told, **changes))
        unit = a.owners["0.weight"]
        assert unit is not None
        assert unit_features(a, unit)["split_on_one_rank"] == value


@pytest.mark.parametrize("precision", [None, Precision(param="bfloat16")])
def test_what_is_sent_has_its_own_bytes(precision: Precision | None) -> None:
    units = plan(Fsdp2Unit(path="0", precision=precision), Fsdp2Unit(path=""))
    a = anatomy(case(SPLIT, WIDER, plan=units))
    # Three of the five rows of 3, twice, and a bias beside it.
    beside = 3 * (4 if precision is None else 2)
    assert gathered_in(a, "0") == ("uint8", 9 * (2 + 4) + beside)
    # Two of the four rows of 5, and a bias.
    assert gathered_in(a, "") == ("uint8", 10 * 8 + 2 * 4)
    wide = anatomy(case(WIDER, ("1.bias", "wider")))
    assert gathered_in(wide, "") == ("float64", 12)


def test_shards_have_the_bytes_that_they_had_and_what_is_whole_has_more() -> None:
    plain, told = anatomy(case()), anatomy(case(SPLIT, WIDER))
    assert shard_bytes(plain) == shard_bytes(told)
    assert whole_bytes(told, ("0",)) - whole_bytes(plain, ("0",)) == 2 * 9 * (2 + 4)
    assert whole_bytes(told, ("",)) - whole_bytes(plain, ("",)) == 2 * 10 * 8


def test_none_is_plainer_and_so_are_fewer_and_two_parts() -> None:
    told = case(SPLIT, WIDER)
    plainer = [s for s in simpler(told) if s.case.model == MODEL]
    words = {s.words for s in plainer if not s.case.extensions}
    assert words == {"all-gather extensions"}
    left = {s.case.extensions for s in plainer}
    first, second = told.extensions
    assert {(first,), (second,), (first, Extension(parameter="1.weight"))} <= left


def test_a_child_that_goes_takes_its_name_along() -> None:
    smaller = {s.case.extensions for s in simpler(case(WIDER)) if s.case.model != MODEL}
    assert (Extension(parameter="0.weight", sends="wider"),) in smaller


def test_a_script_makes_them() -> None:
    def script(*told: tuple[str, str], program: tuple[Op, ...] = ITERATION) -> str:
        return render(case(*told, program=program), None, Context())

    both = script(SPLIT, WIDER)
    compile(both, "repro.py", "exec")
    assert "model[0].weight = nn.Parameter(" in both
    assert both.index("Split(model[0].weight") < both.index("fully_shard(model[0]")
    assert "class Wider" not in script(SPLIT)
    assert "class Split" not in script(WIDER)
    assert "Extended" not in script()

"""Which data stays cut by its rows between modules that are parallelised."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fsdpfuzz.case import (
    Activation,
    Backward,
    CaseSpec,
    Dense,
    Embedding,
    Forward,
    Gain,
    Linear,
    Node,
    Norm,
    Op,
    Repeat,
    Residual,
    Sequential,
    Tokens,
    anatomy,
    check,
    decode,
    encode,
    features,
    is_sound,
    lower,
    parameter_features,
)
from fsdpfuzz.case.modules import Experts
from fsdpfuzz.case.operations import Clip
from fsdpfuzz.case.parallel import Parallel
from fsdpfuzz.case.sequence_parallel import handed_on
from fsdpfuzz.case.tensor_parallel import TensorParallel, TensorParallelDimension, cut_dims
from fsdpfuzz.errors import CaseError
from tests.unit.case.test_units import fsdp2, make

ONCE: tuple[Op, ...] = (Forward(), Backward())
INNER = Sequential(children=(Norm(), Linear(out=6), Activation(fn="gelu"), Linear(out=4)))
BLOCK = Sequential(
    children=(Linear(out=4), Residual(body=INNER), Norm(variant="rms"), Linear(out=4))
)
ROWS, NORM, INNER_NORM = (
    Parallel(module="0", style="rowwise"),
    Parallel(module="2", style="sequence"),
    Parallel(module="1.body.0", style="sequence"),
)
PAIR, COLUMNS = Parallel(module="1.body.1", into="1.body.3"), Parallel(module="3")
ALL = (ROWS, INNER_NORM, PAIR, NORM, COLUMNS)


def cut(*parts: Parallel, told: dict[str, Any] | None = None, **changes: Any) -> CaseSpec:
    given = {"model": BLOCK, "program": ONCE, "world_size": 4, "inputs": Dense(width=4), **changes}
    asked = TensorParallel(modules=parts, **({"hands_on": True} if told is None else told))
    return make(given.pop("plan", fsdp2("")), tensor_parallel=asked, **given)


def ends(case: CaseSpec) -> tuple[list[str], list[str]]:
    check(case)
    found = handed_on(anatomy(case))
    return sorted(found.takes), sorted(found.puts_out)


def test_a_block_hands_on_rows_from_its_first_module_to_its_last() -> None:
    case = cut(*ALL)
    takes, puts_out = ends(case)
    assert takes == ["1.body.0", "1.body.1", "2", "3"]
    assert puts_out == ["0", "1.body.0", "1.body.1", "2"]
    assert decode(encode(case)) == case
    assert features(case)["sequence_parallel"] == "handed on"


@pytest.mark.parametrize(
    ("without", "takes"),
    [
        # What a residual connection hands on beside its body is then whole, too.
        (ROWS, ["1.body.1", "3"]),
        (INNER_NORM, ["3"]),
        (PAIR, ["3"]),
        (NORM, ["1.body.1"]),
        (COLUMNS, ["1.body.0", "1.body.1", "2"]),
    ],
)
def test_whatever_else_sees_data_is_given_the_whole(without: Parallel, takes: list[str]) -> None:
    found, _ = ends(cut(*(part for part in ALL if part is not without)))
    assert found == takes


@pytest.mark.parametrize(
    ("between", "handed"),
    [
        ((), True),
        ((Activation(fn="relu"),), True),
        ((Residual(body=Activation(fn="gelu")),), True),
        ((Sequential(children=(Activation(fn="gelu"),)),), True),
        ((Gain(),), False),
        ((Residual(body=Gain()),), False),
        ((Linear(out=4),), False),
    ],
)
def test_rows_go_through_functions_of_elements_alone(
    between: tuple[Node, ...], handed: bool
) -> None:
    model = Sequential(children=(Linear(out=4), *between, Linear(out=4)))
    last = Parallel(module=f"{len(between) + 1}")
    case = cut(ROWS, last, model=model)
    assert ends(case) == (([last.module], ["0"]) if handed else ([], []))
    assert features(case)["sequence_parallel"] == ("handed on" if handed else "no")


def test_what_the_program_calls_takes_and_puts_out_the_whole() -> None:
    case = cut(*ALL, program=(Forward(target="1"), Backward()))
    assert ends(case) == (["1.body.1", "3"], ["1.body.0", "2"])


def test_a_norm_by_itself_is_given_rows_and_puts_out_the_whole() -> None:
    case = cut(NORM, told={})
    check(case)
    a = anatomy(case)
    assert cut_dims(a) == {"2.weight": None}
    assert parameter_features(a, "2.weight")["cut_along"] == "copied"
    assert (features(case)["sequence_parallel"], features(case)["cut_output"]) == ("alone", "no")
    text = str(lower(a).procedures)
    # Hooks run in the order in which they are registered.
    order = ["PrepareModuleInput", "SequenceParallel", "PrepareModuleOutput", "fully_shard"]
    assert [text.index(name) for name in order] == sorted(text.index(name) for name in order)


def test_a_norm_between_two_needs_no_more_than_its_style() -> None:
    text = str(lower(anatomy(cut(*ALL))).procedures)
    assert "PrepareModule" not in text
    assert text.count("SequenceParallel") == 2


@pytest.mark.parametrize(
    ("told", "output"),
    [
        ({"hands_on": True}, "local"),
        ({"hands_on": True, "use_local_output": False}, "DTensor"),
        ({"use_local_output": False}, "DTensor"),
    ],
)
def test_as_what_data_is_handed_on(told: dict[str, Any], output: str) -> None:
    case = cut(*ALL, told=told)
    check(case)
    assert features(case)["cut_output"] == output


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"inputs": Dense(width=4, batch=3)}, "3 rows"),
        ({"told": {"sequence_dim": 1}}, "no sequence"),
        ({"told": {"sequence_dim": 1}, "inputs": Dense(width=4, length=3)}, "3 rows"),
        ({"told": {"sequence_dim": 1}, "inputs": Dense(width=4, batch=3, length=2)}, None),
        ({"model": Sequential(children=(Linear(out=4), *(Gain(),) * 3))}, "no norm"),
        ({"program": (*ONCE, Clip(max_norm=1.0))}, "on two meshes"),
        ({"plan": fsdp2("0")}, "no unit manages '2'"),
    ],
)
def test_what_a_norm_goes_with(changes: dict[str, Any], said: str | None) -> None:
    case = cut(ROWS, NORM, **changes)
    if said is None:
        check(case)
        return
    with pytest.raises(CaseError, match=said):
        check(case)


def test_tokens_have_rows_of_a_sequence() -> None:
    model = Sequential(children=(Embedding(rows=8, out=4), Norm(), Linear(out=4)))
    case = cut(
        Parallel(module="0", style="rowwise"),
        Parallel(module="1", style="sequence"),
        Parallel(module="2"),
        told={"hands_on": True, "sequence_dim": 1},
        model=model,
        inputs=Tokens(length=4),
    )
    assert ends(case) == (["1", "2"], ["0", "1"])


def test_gradients_of_norms_are_clipped_with_those_of_linears() -> None:
    model = Sequential(children=(Linear(out=4), Norm(), Linear(out=4)))
    parts = (ROWS, Parallel(module="1", style="sequence"), Parallel(module="2"))
    check(cut(*parts, model=model, program=(*ONCE, Clip(max_norm=1.0))))


def test_simpler_ones_have_whole_plain_data() -> None:
    told = {"hands_on": True, "use_local_output": False, "sequence_dim": 1}
    case = cut(*ALL, told=told, inputs=Dense(width=4, batch=2, length=2))
    check(case)
    found = [s.case for s in TensorParallelDimension().simpler(case)]
    first = case.tensor_parallel
    assert first is not None
    assert [s.tensor_parallel for s in found[:4]] == [
        None,
        replace(first, hands_on=False),
        replace(first, use_local_output=True),
        replace(first, sequence_dim=0),
    ]
    assert all(map(is_sound, found))
    (words,) = TensorParallelDimension().facts(case)
    assert words[1].endswith("3 colwise, rows handed on, along 1, as DTensors")


def test_what_a_module_calls_out_of_its_turn_is_given_whole() -> None:
    norms = Sequential(children=(Norm(), Norm()))
    parts = tuple(Parallel(module=f"0.body.{i}", style="sequence") for i in (0, 1))
    for repeat, between in (
        (Repeat(body=norms, times=1, no_grad="body"), {"0.body.0"}),
        (Repeat(body=norms, times=1, no_grad="first_child"), set[str]()),
    ):
        case = cut(*parts, model=Sequential(children=(repeat,)))
        assert handed_on(anatomy(case)).puts_out == between


def test_what_experts_hand_on_in_them_is_whole() -> None:
    chain = Sequential(children=(Linear(out=4), Norm(), Linear(out=4)))
    inside = (
        Parallel(module="1.experts.0.0", style="rowwise"),
        Parallel(module="1.experts.0.1", style="sequence"),
        Parallel(module="1.experts.0.2"),
    )
    model = Sequential(children=(chain, Experts(children=(chain, chain))))
    before = tuple(replace(part, module=part.module.replace("1.experts.0", "0")) for part in inside)
    found = handed_on(anatomy(cut(*before, *inside, model=model)))
    assert found.takes == {"0.1", "0.2"}
    assert found.puts_out == {"0.0", "0.1"}


def test_rows_that_experts_are_given_have_no_second_dimension_to_cut() -> None:
    model = Sequential(children=(Experts(children=(Norm(variant="rms"), Norm())), Norm()))
    data = Dense(width=4, batch=2, length=2)
    inside, beside = (Parallel(module=at, style="sequence") for at in ("0.experts.0", "1"))
    along = {"sequence_dim": 1}
    with pytest.raises(CaseError, match=r"'0\.experts\.0' is given rows alone"):
        check(cut(inside, model=model, inputs=data, told=along))
    check(cut(beside, model=model, inputs=data, told=along))
    check(cut(inside, model=model, inputs=data, told={}))

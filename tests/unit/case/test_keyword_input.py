"""Inputs that the program passes by keyword."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fsdpfuzz.case import (
    ITERATION,
    CaseSpec,
    Checkpoint,
    CheckpointKind,
    Dense,
    Forward,
    Linear,
    Method,
    Norm,
    Plan,
    Residual,
    Sequential,
    StateDict,
    anatomy,
    check,
    decode,
    encode,
    features,
    lower,
)
from fsdpfuzz.case.keyword_input import KeywordInputDimension
from fsdpfuzz.case.recipe import MODEL, Do, Inside, Variable, call, walk
from fsdpfuzz.errors import CaseError
from fsdpfuzz.reduce import simpler
from fsdpfuzz.repro.functions import forwards
from tests.unit.case.test_units import fsdp1, fsdp2, make

X = Variable("x")


def case(plan: Plan | None = None, **changes: Any) -> CaseSpec:
    values = {"model": Linear(out=4), "program": ITERATION, "keyword_input": True}
    return make(plan or fsdp2(""), **values | changes)


def outputs(given: CaseSpec) -> list[object]:
    """What gives the output of each forward."""
    check(given)
    main = walk(lower(anatomy(given)).main)
    return [s.call for s in main if isinstance(s, Do) and s.into == (Variable("output"),)]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (Linear(out=4), "input"),
        (Sequential(children=(Linear(out=4),)), "input"),
        (Norm(), "input"),
        (Norm(variant="rms"), "x"),
        (Residual(body=Linear(out=4)), "x"),
    ],
)
@pytest.mark.parametrize("plan", [fsdp1(""), fsdp2("")])
def test_the_input_has_the_name_that_the_module_gives_it(plan: Plan, model: Any, name: str) -> None:
    given = case(plan, model=model, inputs=Dense(width=4))
    assert outputs(given) == [call(MODEL, **{name: X})]
    plain = msgspec.structs.replace(given, keyword_input=False)
    assert outputs(plain) == [call(MODEL, X)]


def test_a_unit_below_the_root_and_a_method_are_called_so_as_well() -> None:
    program = (Forward(), Forward(grad=False, target="0"))
    below = case(fsdp2("", "0"), model=Sequential(children=(Linear(out=4),)), program=program)
    assert outputs(below) == [call(MODEL, input=X), call(Inside("model", "0"), input=X)]
    encoded = case(model=Method(body=Linear(out=4)), program=(Forward(by_method=True),))
    assert outputs(encoded) == [call(Inside("model", "encode"), x=X)]


def test_a_checkpoint_that_the_program_looks_for_passes_it_on() -> None:
    asked = (Checkpoint(path="", kind="function_offload"),)
    (output,) = outputs(case(checkpoints=asked))
    assert output == call("steps.checkpointing.call", MODEL, input=X)


@pytest.mark.parametrize("kind", ["function", "function_offload"])
def test_a_reentrant_function_passes_none_on(kind: CheckpointKind) -> None:
    model = Sequential(children=(Linear(out=4), Linear(out=4)))
    inputs = Dense(width=4, requires_grad=True)

    def at(path: str, kind: CheckpointKind) -> CaseSpec:
        placed = Checkpoint(path=path, kind=kind, reentrant=True)
        return case(fsdp2(""), model=model, inputs=inputs, checkpoints=(placed,))

    with pytest.raises(CaseError, match="passes no keyword arguments on"):
        check(at("", kind))
    for sound in (at("", "wrapper"), at("0", kind)):
        check(sound)
    check(msgspec.structs.replace(at("", kind), keyword_input=False))


def test_by_position_is_plainer() -> None:
    given = case(model=Linear(out=4, bias=False), inputs=Dense(width=1, batch=1))
    plain = msgspec.structs.replace(given, keyword_input=False)
    assert [n.case for n in simpler(given) if n.words == "inputs by keyword"] == [plain]
    assert [features(one)["keyword_input"] for one in (given, plain)] == ["on", "off"]
    told = [dict(KeywordInputDimension().facts(one)) for one in (given, plain)]
    assert told == [{"passed": "inputs by keyword"}, {}]
    assert decode(encode(given)) == given
    assert b"keyword" not in encode(plain)


def test_it_needs_a_call() -> None:
    with pytest.raises(CaseError, match="nothing is called"):
        check(case(program=(StateDict(),)))


def test_a_script_has_one_function_of_forwards_where_they_name_the_input_alike() -> None:
    program = (Forward(), Forward(grad=False, target="body"))
    given = case(model=Residual(body=Linear(out=4)), program=program)
    for one, folded in (
        (given, False),
        (msgspec.structs.replace(given, keyword_input=False), True),
    ):
        _, function = forwards(lower(anatomy(one)).main, ["output", "loss"])
        assert (function is not None) == folded

"""What ``model.to`` there and back says, refuses and lowers to."""

from __future__ import annotations

import re

import pytest

from fsdpfuzz.case import (
    ITERATION,
    Backward,
    CaseSpec,
    Forward,
    Linear,
    Op,
    Sequential,
    Step,
    anatomy,
    check,
    decode,
    encode,
    features,
    lower,
)
from fsdpfuzz.case.hazards.resharded_gather import resharded_gathers
from fsdpfuzz.case.operations import Convert
from fsdpfuzz.case.recipe import MODEL, Call, Do, Operation, Variable
from fsdpfuzz.case.wrap import Fsdp2Plan, Fsdp2Unit
from fsdpfuzz.errors import CaseError
from fsdpfuzz.reduce import simpler
from fsdpfuzz.repro import Context, render
from tests.unit.case.test_units import fsdp1, fsdp2, make

MODEL_OF_TWO = Sequential(children=(Linear(out=2), Linear(out=2)))
CAST, MOVED = Convert(), Convert(what="device")


def case(*program: Op, **changes: object) -> CaseSpec:
    given = {"model": MODEL_OF_TWO, "program": program, **changes}
    return make(given.pop("plan", fsdp2("", "1")), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("program", "value"),
    [
        (ITERATION, "no"),
        ((*ITERATION, CAST), "dtype"),
        ((MOVED, *ITERATION), "device"),
        ((MOVED, *ITERATION, CAST), "several"),
        ((*ITERATION, Forward(grad=False), CAST, Step()), "dtype"),
        ((Forward(sync=False), Backward(), CAST, *ITERATION), "dtype"),
    ],
)
def test_it_goes_into_json_and_is_a_feature(program: tuple[Op, ...], value: str) -> None:
    given = case(*program)
    check(given)
    assert decode(encode(given)) == given
    assert features(given)["converted"] == value
    assert "converted" not in features(case(*ITERATION, plan=fsdp1("")))


OFFLOADED = Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="1", cpu_offload=True)))


@pytest.mark.parametrize(
    ("program", "changes", "words", "place"),
    [
        ((CAST,), {"plan": fsdp1("")}, "an operation of fsdp2 alone", ""),
        ((Forward(), CAST, Backward()), {}, "waits for its backward", ""),
        ((MOVED,), {"plan": OFFLOADED}, "offloaded to the CPU", ".what"),
        ((CAST,), {"stored_low": ("0",), "frozen": ("0.weight", "0.bias")}, "one dtype", ".what"),
    ],
)
def test_what_contradicts_the_case(
    program: tuple[Op, ...], changes: dict[str, object], words: str, place: str
) -> None:
    with pytest.raises(CaseError, match=words) as caught:
        check(case(*program, **changes))
    at = next(i for i, op in enumerate(program) if isinstance(op, Convert))
    assert caught.value.path == f"$.program[{at}]{place}"


def test_the_other_way_goes_on() -> None:
    check(case(CAST, *ITERATION, plan=OFFLOADED))
    check(case(MOVED, *ITERATION, stored_low=("0",), frozen=("0.weight", "0.bias")))


@pytest.mark.parametrize(
    ("asked", "step", "to"),
    [(CAST, "through_float64", "dtype"), (MOVED, "through_cpu", "device")],
)
def test_both_models_go_there(asked: Convert, step: str, to: str) -> None:
    (body,) = [s.body for s in lower(anatomy(case(asked))).main if isinstance(s, Operation)]
    ((who, call),) = [(do.who, do.call) for do in body if isinstance(do, Do)]
    assert isinstance(call, Call)
    assert (who, call.function) == ("both", f"steps.convert.{step}")
    assert call.args == (MODEL, Variable(to))


def test_a_cast_is_plainer() -> None:
    found = {s.words: s.case.program[-1] for s in simpler(case(*ITERATION, MOVED))}
    assert found["a move to the CPU"] == CAST


def test_it_shards_a_unit_that_waits_for_an_all_gather() -> None:
    few = Fsdp2Unit(path="0", reshard_after_forward=2)
    again = Fsdp2Unit(path="1", prefetched_in_forward=("0",))
    plan = Fsdp2Plan(units=(Fsdp2Unit(path=""), few, again))
    evaluation = Forward(grad=False)
    for op, units in ((CAST, {"0"}), (Step(), set[str]())):
        given = case(evaluation, op, evaluation, plan=plan, world_size=4)
        assert resharded_gathers(anatomy(given)) == units


@pytest.mark.parametrize("prints", [False, True])
@pytest.mark.parametrize(
    ("asked", "there", "back"),
    [
        (CAST, "model.to(dtype=torch.float64)", r"model\.to\(dtype=(dtype|torch\.float32)\)"),
        (MOVED, 'model.to(device="cpu")', r"model\.to\(device=device\)"),
    ],
)
def test_a_script_goes_there_and_back(asked: Convert, there: str, back: str, prints: bool) -> None:
    context = Context(backend="gloo" if asked == CAST else "nccl")
    script = render(case(asked, *ITERATION), None, context, print_losses=prints)
    compile(script, "repro.py", "exec")
    first, second = script.index(there), re.search(back, script)
    assert second is not None
    assert first < second.start()

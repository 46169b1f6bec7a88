"""Which parameters an optimizer has no state of as it is saved, and on which ranks."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    Dense,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Idle,
    Linear,
    Node,
    Optimizer,
    Plan,
    Rebuild,
    RequiresGrad,
    Sequential,
    Step,
    ZeroGrad,
    anatomy,
    check,
    features,
    parameter_features,
)
from fsdpfuzz.case.modules import Gain, Lora
from fsdpfuzz.case.operations import Apply, ClearGrad, Op, OptimState
from tests.unit.case.test_hazards import LOAD, OWN, TRAIN, having, orig
from tests.unit.case.test_units import fsdp1, fsdp2, make

DROP = ClearGrad(parameters=("bias",))
DROPPED: tuple[Op, ...] = (Forward(), Backward(), DROP, Step())
STILL = RequiresGrad(parameters=("bias",), value=False)


@pytest.mark.parametrize(
    ("plan", "program", "expected"),
    [
        (orig(""), (*DROPPED, OWN), ["bias"]),
        (orig(""), (*DROPPED, LOAD), ["bias"]),
        (orig(""), (*DROPPED, Rebuild(plan=orig(""))), ["bias"]),
        (fsdp1(""), (*DROPPED, OWN), []),
        (orig(""), (*TRAIN, OWN), []),
        (orig(""), (*TRAIN, *DROPPED, OWN), []),
        (orig(""), (*DROPPED, *TRAIN, OWN), []),
        # Nothing is stepped, or nothing is saved.
        (orig(""), (Forward(), Backward(), OWN), []),
        (orig(""), DROPPED, []),
    ],
)
def test_an_optimizer_has_no_state_of_a_parameter_but_of_its_neighbour(
    plan: Plan, program: tuple[Op, ...], expected: list[str]
) -> None:
    case = make(plan, model=Linear(out=2), program=program)
    assert having(case, "unstepped") == expected
    plain = msgspec.structs.replace(case, optimizer=Optimizer(momentum=0.0))
    assert having(plain, "unstepped") == []


@pytest.mark.parametrize(
    ("op", "plan", "expected"),
    [
        (OWN, orig(""), ["bias"]),
        # The second of two ranks has the bias alone, and makes a state of it.
        (LOAD, orig(""), []),
        (LOAD, orig("", sharding="NO_SHARD"), ["bias"]),
    ],
)
def test_a_rank_without_states_makes_them(op: Op, plan: Plan, expected: list[str]) -> None:
    inputs, model = Dense(width=1, batch=1), Linear(out=8)
    case = make(plan, model=model, inputs=inputs, program=(*DROPPED, op))
    assert having(case, "unstepped") == expected
    frozen = msgspec.structs.replace(case, program=(*case.program[:-1], STILL, op))
    assert having(frozen, "unstepped") == []
    assert "unstepped" not in parameter_features(anatomy(make(fsdp2(""))), "0.weight")


# One element each: the first of two ranks has two of them, the second one the adapter.
ADAPTED = Sequential(children=(Linear(out=1, bias=False), Lora(out=1, bias=False)))
BEHIND = ("1.base.weight", "1.down.weight", "1.up.weight")


@pytest.mark.parametrize(
    ("plan", "dropped", "op", "expected"),
    [
        (orig(""), BEHIND, LOAD, ["1.base.weight"]),
        (orig("", "0"), BEHIND, LOAD, list(BEHIND[:2])),
        (orig(""), BEHIND[1:], LOAD, []),
        (orig(""), BEHIND[:1], LOAD, []),
        (orig(""), BEHIND, OWN, []),
        (fsdp1(""), BEHIND, LOAD, []),
    ],
)
def test_another_rank_makes_states_of_what_a_rank_has_none_of(
    plan: Plan, dropped: tuple[str, ...], op: Op, expected: list[str]
) -> None:
    program = (Forward(), Backward(), ClearGrad(parameters=dropped), Step(), op)
    a = anatomy(make(plan, model=ADAPTED, inputs=Dense(width=1, batch=1), program=program))
    told = {p.fqn: parameter_features(a, p.fqn)["unstepped"] for p in a.parameters}
    assert [fqn for fqn, value in told.items() if value == "elsewhere"] == expected


def test_what_no_forward_reads_of_a_unit_is_not_stepped() -> None:
    """A rank that has elements of nothing else makes states of all, another one does not."""
    model = Sequential(children=(Idle(), Linear(out=1)))
    given = make(
        orig("", "0"),
        model=model,
        inputs=Dense(width=1, batch=1),
        frozen=("1.weight",),
        program=(*TRAIN, LOAD),
    )
    a = anatomy(given)
    told = {p.fqn: parameter_features(a, p.fqn)["unstepped"] for p in a.parameters}
    assert [fqn for fqn, value in told.items() if value == "elsewhere"] == ["0.idle.bias"]


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        # The second of two ranks has no element of the layer that was stepped, and makes states.
        (orig("", ignored=("0",)), ["0.weight"]),
        # Both have.
        (fsdp1("", ignored=("0",)), ["0.weight"]),
        (orig("", "0"), []),
    ],
)
def test_nobody_hands_on_the_state_of_what_no_unit_manages(plan: Plan, expected: list[str]) -> None:
    model = Sequential(children=(Linear(out=1, bias=False), Linear(out=1, bias=False)))
    thaw = RequiresGrad(parameters=("0.weight",), value=True)
    given = make(
        plan,
        model=model,
        inputs=Dense(width=1, batch=1),
        frozen=("0.weight",),
        program=(*TRAIN, ZeroGrad(), thaw, OptimState(flatten=True, strict=False, fresh=True)),
    )
    assert having(given, "stateless") == expected


@pytest.mark.parametrize("flatten", [False, True])
def test_a_parameter_lacks_state_however_it_is_taken(flatten: bool) -> None:
    model = Sequential(children=(Linear(out=1, bias=False), Idle()))
    taken = OptimState(flatten=flatten, strict=False)
    unused = ["1.idle.weight", "1.idle.bias"]
    case = make(fsdp2(""), model=model, program=(*TRAIN, taken))
    assert having(case, "lacking_state") == unused
    assert having(case, "stateless") == (unused if flatten else [])
    used = msgspec.structs.replace(case, model=Sequential(children=(Linear(out=1), Linear(out=1))))
    assert having(used, "lacking_state") == []


FLAT, WHOLE = OptimState(flatten=True), OptimState()


@pytest.mark.parametrize(
    ("plan", "program", "expected"),
    [
        (orig("", ignored=("0",)), (Step(), FLAT, WHOLE), ["0.weight"]),
        (orig("1"), (Step(), FLAT, WHOLE), ["0.weight"]),
        (orig("", "0"), (Step(), FLAT, WHOLE), []),
        (orig("", ignored=("0",)), (Step(), WHOLE, FLAT), []),
        (orig("", ignored=("0",)), (Step(), FLAT, FLAT), []),
    ],
)
def test_what_no_unit_manages_alone_has_a_state_which_is_empty(
    plan: Plan, program: tuple[Op, ...], expected: list[str]
) -> None:
    given = make(
        plan,
        model=Sequential(children=(Linear(out=1, bias=False), Linear(out=1, bias=False))),
        inputs=Dense(width=1, batch=1),
        optimizer=Optimizer(momentum=0.0),
        program=program,
    )
    check(given)
    assert having(given, "emptied") == expected
    kept = msgspec.structs.replace(given, optimizer=Optimizer(), program=(*TRAIN, *program))
    assert having(kept, "emptied") == []


@pytest.mark.parametrize(
    ("plan", "shown", "expected"),
    [
        (fsdp1(""), (), "off"),
        (fsdp1(""), (Apply(),), "on"),
        (fsdp1(""), (Apply(), Step()), "on"),
        (fsdp1(""), (Step(),), "off"),
        (fsdp1(""), (Forward(),), "on"),
        (fsdp2(""), (Forward(),), "on"),
    ],
)
def test_what_shows_that_a_unit_was_whole_when_it_was_stepped(
    plan: Plan, shown: tuple[Op, ...], expected: str
) -> None:
    program = (Forward(), Backward(), Forward(grad=False), Step(), *shown)
    assert features(make(plan, model=Linear(out=1), program=program))["stepped_whole"] == expected


@pytest.mark.parametrize(
    ("children", "frozen", "program", "expected"),
    [
        ((Gain(scalar=True),), (), (*TRAIN, LOAD), "scalars"),
        ((Gain(scalar=True),), (), (Forward(), Backward(), LOAD, *TRAIN), "on"),
        ((Gain(scalar=True),), (), TRAIN, "off"),
        ((Gain(),), (), (*TRAIN, LOAD), "off"),
        ((Gain(scalar=True), Linear(out=2)), (), (*TRAIN, LOAD), "off"),
        ((Gain(scalar=True), Linear(out=2)), ("1.weight", "1.bias"), (*TRAIN, LOAD), "scalars"),
        ((Gain(scalar=True), Idle()), (), (*TRAIN, LOAD), "scalars"),
    ],
)
def test_state_of_0_dim_parameters_alone(
    children: tuple[Node, ...], frozen: tuple[str, ...], program: tuple[Op, ...], expected: str
) -> None:
    unit = Fsdp2Unit(path="", ignored_parameters=("0.gain",))
    case = make(
        Fsdp2Plan(units=(unit,)),
        model=Sequential(children=children),
        program=program,
        frozen=frozen,
    )
    assert features(case)["optim_stateless"] == expected

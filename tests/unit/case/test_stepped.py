"""Which parameters an optimizer has no state of as it is saved, and on which ranks."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    Dense,
    Forward,
    Linear,
    Optimizer,
    Plan,
    Rebuild,
    RequiresGrad,
    Sequential,
    Step,
    anatomy,
    parameter_features,
)
from fsdpfuzz.case.modules import Lora
from fsdpfuzz.case.operations import ClearGrad, Op
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

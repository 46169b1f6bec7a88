"""What a finding does not need is taken out of its case, as far as somebody would write it so."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from fsdpfuzz.loop._trim import is_orderly, trim
from fsdpfuzz.spec import (
    Backward,
    CaseSpec,
    Checkpoint,
    Forward,
    Mode,
    Op,
    StateDict,
    Step,
    Twin,
    ZeroGrad,
    check,
)
from tests.unit.loop.standins import make_case, steps_of

ITERATION = (Forward(), Backward(), Step(), ZeroGrad())


def case_of(*program: Op) -> CaseSpec:
    case = msgspec.structs.replace(make_case((3, 2)), program=program)
    check(case)
    return case


def trimmed(case: CaseSpec, shows: Callable[[CaseSpec], bool]) -> CaseSpec:
    assert shows(case)
    result = trim(case, shows)
    check(result)
    assert shows(result)
    return result


def test_only_the_iterations_that_it_needs_are_left() -> None:
    case = case_of(*ITERATION * 3, Mode(train=False))
    left = trimmed(case, lambda c: steps_of(c) >= 2)
    assert left.program == (Forward(), Backward()) * 2


def test_what_it_needs_stays() -> None:
    case = case_of(*ITERATION, Forward(sync=False), Backward(), Forward(), Backward(), Step())
    left = trimmed(case, lambda c: any(isinstance(op, Forward) and not op.sync for op in c.program))
    assert left.program == (Forward(sync=False), Backward())
    stepped = trimmed(case, lambda c: Step() in c.program and Forward(sync=False) in c.program)
    assert stepped.program.index(Step()) > 0
    assert is_orderly(stepped.program)


def test_something_is_trained_where_something_was() -> None:
    assert trimmed(case_of(*ITERATION), lambda _: True).program == (Forward(), Backward())
    assert trimmed(case_of(StateDict(), Mode(train=False)), lambda _: True).program != ()


@pytest.mark.parametrize(
    ("program", "orderly"),
    [
        ((Forward(), Backward(), Step()), True),
        ((Forward(),), False),
        ((Forward(), Step()), False),
        ((Forward(sync=False), Backward(), Step()), False),
        ((Forward(sync=False), Backward(), Forward(), Backward(), StateDict()), True),
        ((Forward(grad=False), Step()), True),
        ((Forward(drop=True), StateDict()), True),
        ((StateDict(),), True),
    ],
)
def test_orderly(program: tuple[Op, ...], orderly: bool) -> None:
    assert is_orderly(program) is orderly


def test_twins_go_unless_the_finding_is_theirs() -> None:
    twin = Twin(name="plain", checkpoints=(Checkpoint(path="0", kind="wrapper"),))
    case = msgspec.structs.replace(case_of(*ITERATION), twins=(twin,))
    check(case)
    assert trimmed(case, lambda _: True).twins == ()
    assert trimmed(case, lambda c: bool(c.twins)).twins == (twin,)


def test_it_ends_after_so_many_tries() -> None:
    tried: list[CaseSpec] = []

    def never(case: CaseSpec) -> bool:
        tried.append(case)
        return False

    case = case_of(*ITERATION * 5)
    assert trim(case, never, max_tries=7) == case
    assert len(tried) == 7

"""Which units are sharded otherwise while they wait for an all-gather."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Op,
    Sequential,
    StateDict,
    Step,
    anatomy,
    check,
    unit_features,
)
from fsdpfuzz.case.operations import FullParams, OptimState, Reshard, SetReshard, Transfer

F, QUIET, B = Forward(), Forward(grad=False), Backward()
AGAIN = Reshard(unit="0")


def told(
    *program: Op, left: int | bool | None = 2, first: str = "1", named: str = "0", unit: str = "0"
) -> str:
    """Of a unit, where ``first`` names another in its list."""
    plan = Fsdp2Plan(
        units=tuple(
            Fsdp2Unit(
                path=path,
                reshard_after_forward=left if path == "0" else None,
                prefetched_in_forward=(named,) if path == first else (),
            )
            for path in ("", "0", "1")
        )
    )
    given = CaseSpec(
        world_size=4,
        model=Sequential(children=(Linear(out=2), Linear(out=2))),
        inputs=Dense(width=2),
        plan=plan,
        program=program,
    )
    check(given)
    return unit_features(anatomy(given), unit)["resharded_gather"]


# As they were run on gloo, torch 2.13.0: where it is on, copying out raises.
@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ((F, B), "off"),
        ((F, AGAIN, B), "on"),
        ((AGAIN, F, B), "off"),
        ((QUIET, AGAIN, F, B), "on"),
        ((F, B, AGAIN, F, B), "off"),
        ((F, Reshard(unit="1"), B), "off"),
        ((QUIET, StateDict(), F, B), "on"),
        ((QUIET, StateDict(submodule="1"), F, B), "on"),
        ((QUIET, OptimState(), F, B), "on"),
        ((QUIET, Transfer(), F, B), "on"),
        ((QUIET, FullParams(), F, B), "off"),
        ((QUIET, SetReshard(unit="0", reshard=True), F, B), "on"),
    ],
)
def test_something_shards_what_waits(program: tuple[Op, ...], expected: str) -> None:
    if any(isinstance(op, OptimState) for op in program):
        program = (F, B, Step(), *program)
    assert told(*program) == expected


@pytest.mark.parametrize("left", [None, True, False, 1, 4])
def test_it_waits_for_an_all_gather_over_fewer_ranks(left: int | bool | None) -> None:
    assert told(F, AGAIN, B, left=left) == "off"


def test_it_is_gathered_behind_its_call() -> None:
    assert told(F, AGAIN, B, first="", named="0") == "off", "the root comes before it"
    assert told(F, Reshard(unit="1"), B, first="0", named="1", unit="1") == "off"

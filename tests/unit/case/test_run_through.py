"""Which units a recomputation comes to once more, though nothing in them is asked for."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Checkpoint,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Idle,
    Linear,
    Node,
    Repeat,
    Sequential,
    anatomy,
    check,
    unit_features,
)
from fsdpfuzz.case.modules import Norm

ROOT = Checkpoint(path="")
AROUND = Checkpoint(path="", side="around")


def case(*children: Node, units: tuple[str, ...] = ("", "1"), fsdp1: bool = False) -> CaseSpec:
    plan: Fsdp1Plan | Fsdp2Plan = Fsdp2Plan(units=tuple(Fsdp2Unit(path=path) for path in units))
    if fsdp1:
        plan = Fsdp1Plan(units=tuple(Fsdp1Unit(path=path) for path in units))
    return CaseSpec(
        world_size=2,
        model=Sequential(children=children),
        inputs=Dense(width=2),
        plan=plan,
        program=(Forward(), Backward()),
    )


def told(given: CaseSpec, *checkpoints: Checkpoint, feature: str, unit: str = "1") -> str:
    given = msgspec.structs.replace(given, checkpoints=checkpoints)
    check(given)
    return unit_features(anatomy(given), unit)[feature]


# As they were run on gloo, torch 2.13.0: of a unit that returns its input it is on where the unit
# stays unsharded, unless what lies behind it saves something.
@pytest.mark.parametrize(
    ("checkpoints", "expected"),
    [
        ((), "off"),
        ((ROOT,), "off"),
        ((ROOT, Checkpoint(path="0")), "off"),
        ((ROOT, Checkpoint(path="1")), "on"),
        ((ROOT, Checkpoint(path="1", side="around")), "off"),
        ((ROOT, Checkpoint(path="2")), "on"),
        ((ROOT, Checkpoint(path="2", kind="offload")), "off"),
        ((Checkpoint(path="", reentrant=True), Checkpoint(path="2")), "off"),
        ((Checkpoint(path="1"), Checkpoint(path="2")), "off"),
    ],
)
def test_a_recomputation_runs_through_a_unit_to_another_checkpoint(
    checkpoints: tuple[Checkpoint, ...], expected: str
) -> None:
    given = case(Linear(out=2), Idle(), Norm(affine=False))
    assert told(given, *checkpoints, feature="run_through") == expected


def test_that_of_an_earlier_call_comes_after_the_backward_of_a_later_one() -> None:
    given = case(Linear(out=2), Repeat(body=Idle(), times=2), units=("", "1.body"))
    assert told(given, ROOT, feature="run_through", unit="1.body") == "on"
    once = case(Linear(out=2), Repeat(body=Idle(), times=1), units=("", "1.body"))
    assert told(once, ROOT, feature="run_through", unit="1.body") == "off"


@pytest.mark.parametrize(
    ("checkpoint", "units", "expected"),
    [
        (AROUND, ("", "1"), "on"),
        (AROUND, ("1",), "on"),
        (ROOT, ("", "1"), "off"),
        (Checkpoint(path="1", side="around"), ("", "1"), "off"),
        (Checkpoint(path="1", side="around"), ("1",), "on"),
    ],
)
def test_the_root_is_recomputed_where_a_checkpoint_lies_around_it(
    checkpoint: Checkpoint, units: tuple[str, ...], expected: str
) -> None:
    given = case(Linear(out=2), Linear(out=2), units=units, fsdp1=True)
    assert told(given, checkpoint, feature="recomputed_root") == expected

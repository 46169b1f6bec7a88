"""Units in an expert that ranks without rows for it gather in another order in backward."""

from __future__ import annotations

from typing import Any

import pytest

from fsdpfuzz.case import (
    Backward,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Mode,
    Op,
    Plan,
    Rebuild,
    Sequential,
    anatomy,
    check,
    unit_features,
)
from fsdpfuzz.case.hazards.empty_experts import gathered_in_two_orders
from fsdpfuzz.case.modules import Dropout, Experts, Idle, Node, Residual
from tests.unit.case.test_units import fsdp2, make

PLAIN, INNER, OUTER = "experts.0", "experts.1.1", "experts.1"
ONCE: tuple[Op, ...] = (Forward(), Backward())
LAYER = Linear(out=3)
TWO = Sequential(children=(LAYER, LAYER, Dropout(p=0.5)))
ROOT_OF_ITS_OWN = Fsdp2Plan(
    units=(Fsdp2Unit(path=OUTER, reshard_after_forward=True), Fsdp2Unit(path=INNER))
)


def found(plan: Plan, expert: Node = TWO, **changes: Any) -> set[str]:
    model = changes.pop("model", Experts(children=(LAYER, expert)))
    given = {"model": model, "inputs": Dense(width=3, batch=1), "program": ONCE, **changes}
    case = make(plan, **given)
    check(case)
    a = anatomy(case)
    told = {path for path in a.units if unit_features(a, path)["two_orders"] == "on"}
    assert told == gathered_in_two_orders(a)
    return told


def listing(*names: str, by: str = "") -> Fsdp2Plan:
    """The root, or another unit, has a list of what it gathers ahead in backward."""
    return Fsdp2Plan(
        units=tuple(
            Fsdp2Unit(path=path, prefetched_in_backward=names if path == by else ())
            for path in ("", PLAIN, OUTER, INNER)
        )
    )


def first(prefetch: Any, sharding: Any = "FULL_SHARD") -> Fsdp1Plan:
    return Fsdp1Plan(
        units=tuple(
            Fsdp1Unit(path=path, backward_prefetch=prefetch, sharding=sharding)
            for path in (PLAIN, INNER, OUTER, "")
        )
    )


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        # As seen on two ranks with gloo: wrong gradients, or none.
        (listing(PLAIN), {"", PLAIN, OUTER, INNER}),
        (ROOT_OF_ITS_OWN, {OUTER, INNER}),
        (first("BACKWARD_POST"), {"", PLAIN, OUTER, INNER}),
        (first(None), {"", PLAIN, OUTER, INNER}),
        # The root gathers one of them ahead on all ranks.
        (fsdp2("", PLAIN, OUTER, INNER), set()),
        (listing(OUTER), set()),
        (listing(INNER), set()),
        (first("BACKWARD_PRE"), set()),
        # The outer one gathers another unit beside the inner one when its own hook runs.
        (listing(PLAIN, by=OUTER), {"", PLAIN, OUTER, INNER}),
        (listing(PLAIN, by=INNER), set()),
        # One of them is whole all the time.
        (fsdp2(OUTER, INNER), set()),
        (first(None, "SHARD_GRAD_OP"), set()),
        (fsdp2("", PLAIN, INNER), set()),
    ],
)
def test_who_gathers_the_outer_unit_ahead_decides(plan: Plan, expected: set[str]) -> None:
    assert found(plan) == expected


@pytest.mark.parametrize(
    ("expert", "on"),
    [
        (Sequential(children=(LAYER, LAYER, Dropout(p=0.5), Idle())), True),
        (Sequential(children=(LAYER, LAYER, Idle())), False),
        (Sequential(children=(LAYER, LAYER)), False),
        (Sequential(children=(LAYER, LAYER, Dropout(p=0.5), LAYER)), False),
        (Sequential(children=(LAYER, LAYER, Residual(body=Dropout(p=0.5)))), False),
    ],
)
def test_it_takes_a_module_that_returns_its_input_without_rows_alone(
    expert: Node, on: bool
) -> None:
    assert found(first(None), expert) == ({"", PLAIN, OUTER, INNER} if on else set())


@pytest.mark.parametrize(
    ("changes", "on"),
    [
        ({"inputs": Dense(width=3, batch=2)}, True),
        ({"inputs": Dense(width=3, batch=3)}, False),
        ({"inputs": Dense(width=3, batch=1, length=3)}, False),
        ({"model": Experts(children=(LAYER, TWO), top=2)}, False),
        ({"program": (Mode(train=False), *ONCE)}, False),
        ({"program": (Mode(train=False), *ONCE, Mode(train=True), *ONCE)}, True),
    ],
)
def test_it_takes_an_expert_that_may_have_no_rows_in_training(
    changes: dict[str, Any], on: bool
) -> None:
    assert found(ROOT_OF_ITS_OWN, **changes) == ({OUTER, INNER} if on else set())


def test_what_is_called_later_is_right() -> None:
    model = Sequential(children=(LAYER, Experts(children=(LAYER, TWO)), LAYER))
    units = ("", "0", "1.experts.0", "1.experts.1", "1.experts.1.1", "2")
    plan = Fsdp2Plan(
        units=tuple(
            Fsdp2Unit(path=path, prefetched_in_backward=("0",) if path == "2" else ())
            for path in units
        )
    )
    assert found(plan, model=model) == {"", "0", "1.experts.0", "1.experts.1", "1.experts.1.1"}


def test_an_expert_hands_out_some_of_its_rows() -> None:
    model = Experts(children=(LAYER, Experts(children=(LAYER, TWO))))
    plan = Fsdp2Plan(
        units=(
            Fsdp2Unit(path="experts.1.experts.1", reshard_after_forward=True),
            Fsdp2Unit(path="experts.1.experts.1.1"),
        )
    )
    inputs = Dense(width=3, batch=4)
    assert len(found(plan, model=model, inputs=inputs)) == 2


def test_a_model_that_is_wrapped_anew_is_asked_by_each_plan() -> None:
    program = (*ONCE, Rebuild(plan=ROOT_OF_ITS_OWN), *ONCE)
    case = make(
        fsdp2(""),
        model=Experts(children=(LAYER, TWO)),
        inputs=Dense(width=3, batch=1),
        program=program,
    )
    check(case)
    assert gathered_in_two_orders(anatomy(case)) == {OUTER, INNER}

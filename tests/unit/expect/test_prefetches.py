"""What lists of units to prefetch change in the order of collectives, on three layers."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import (
    Backward,
    Dense,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Sequential,
    anatomy,
    check,
)
from fsdpfuzz.expect.calls import calls_of
from fsdpfuzz.expect.prefetches import backward_order
from tests.unit.case.test_units import fsdp2, make
from tests.unit.expect.test_collectives import numbers, promised

CHAIN = Sequential(children=(Linear(out=4), Linear(out=2), Linear(out=6)))
FIRST, SECOND, THIRD = (f"all_gather float32 {n}" for n in (6, 5, 9))


def plan(forward: tuple[str, ...] = (), backward: tuple[str, ...] = ()) -> Fsdp2Plan:
    """A unit a layer; the first is told what to prefetch in forward, the last in backward."""
    return Fsdp2Plan(
        units=(
            Fsdp2Unit(path=""),
            Fsdp2Unit(path="0", prefetched_in_forward=forward),
            Fsdp2Unit(path="1"),
            Fsdp2Unit(path="2", prefetched_in_backward=backward),
        )
    )


def test_a_forward_list_is_gathered_behind_the_unit_that_has_it() -> None:
    found = promised(plan(("2", "1")), model=CHAIN)
    assert found[0].order == (FIRST, THIRD, SECOND)
    assert numbers(found) == numbers(promised(plan(), model=CHAIN))


def test_a_backward_list_replaces_the_unit_before() -> None:
    reduced = "reduce_scatter float32"
    first, second, third = (f"{reduced} {numel}" for numel in (12, 10, 18))
    in_turn = ((second, first), (third, second), (third, first))
    early = promised(plan(), model=CHAIN)[1].early
    assert early == ((FIRST, second), (SECOND, third), *in_turn, (third, FIRST))
    early = promised(plan(backward=("0",)), model=CHAIN)[1].early
    assert early == ((FIRST, second), (FIRST, third), *in_turn)


def in_turn(plan: Fsdp2Plan, kind: str, *, requires_grad: bool = False) -> list[tuple[str, str]]:
    """Which unit is reduced before which other one is reduced or gathered."""
    inner = Sequential(children=(Linear(out=4), Linear(out=2), Linear(out=5)))
    case = make(
        plan,
        model=Sequential(children=(inner, Linear(out=6), Linear(out=3))),
        inputs=Dense(width=2, requires_grad=requires_grad),
        program=(Forward(), Backward()),
    )
    check(case)
    a = anatomy(case)
    _, op, now = next(iter(a.situations(0)))
    assert isinstance(op, Forward)
    made = calls_of(a, op, now)
    assert made is not None
    pairs = backward_order(a, made.begun, made.ended, made.entered)
    kinds = ("reduce", kind)
    return [(first.unit, then.unit) for first, then in pairs if (first.kind, then.kind) == kinds]


def test_a_unit_is_reduced_before_all_that_began_before_it() -> None:
    nested = fsdp2("", "0", "0.1", "1")
    early = [("0.1", "0"), ("0.1", ""), ("1", "0.1"), ("1", "0"), ("1", "")]
    assert in_turn(nested, "reduce") == early
    # That without such an input is reduced at the end.
    assert in_turn(nested, "reduce", requires_grad=True) == [("0", ""), *early]


@pytest.mark.parametrize(
    ("first", "second"), [(("0.0", "0.2"), ("0.1",)), (("0.0",), ("0.1", "0.2"))]
)
def test_between_the_modules_of_a_list_others_are_called(
    first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    units = (Fsdp2Unit(path=path[0], grouped=path[1:]) for path in (("",), first, second, ("1",)))
    plan = Fsdp2Plan(units=tuple(units))
    reduced = [("0.1", "0.0"), ("0.1", ""), ("1", "0.1"), ("1", "0.0"), ("1", "")]
    assert in_turn(plan, "reduce") == reduced
    # Of the list nobody knows whether it has ended.
    assert in_turn(plan, "gather") == []


def test_what_lies_two_units_further_is_gathered_behind_a_reduction() -> None:
    found = in_turn(fsdp2("", "0", "0.1", "1", "2"), "gather")
    # While a unit is whole in which others lie, the one before the first of them is gathered.
    assert found == [("1", "0.1"), ("2", "0.1"), ("2", "0")]


def test_nothing_is_promised_where_the_list_comes_too_late() -> None:
    late = Fsdp2Plan(
        units=(
            Fsdp2Unit(path=""),
            Fsdp2Unit(path="0", prefetched_in_backward=("1",)),
            Fsdp2Unit(path="1", prefetched_in_forward=("0",)),
        )
    )
    assert promised(late, model=CHAIN) == {}
    root = Fsdp2Unit(path="", prefetched_in_forward=("1",))
    bare = Fsdp2Plan(units=(root, *(Fsdp2Unit(path=path) for path in ("0", "1", "2"))))
    assert promised(bare, model=CHAIN) == {}
    backward = Fsdp2Plan(units=(*late.units[:2], Fsdp2Unit(path="1")))
    assert [*promised(backward, model=CHAIN)] == [0]

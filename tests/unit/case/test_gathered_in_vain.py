"""Units that a backward gathers ahead and never comes to."""

from __future__ import annotations

from typing import Literal

import pytest

from fsdpfuzz.case import (
    Backward,
    Dense,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Idle,
    Linear,
    Lora,
    Op,
    Rebuild,
    Repeat,
    Sequential,
    Step,
    anatomy,
    check,
    unit_features,
)
from fsdpfuzz.case.hazards.vain_gathers import vain_gathers
from tests.unit.case.test_units import fsdp1, fsdp2, make

CHAIN = Sequential(children=(Linear(out=4, bias=False), Linear(out=4, bias=False)))
ONCE: tuple[Op, ...] = (Forward(), Backward())
AGAIN = (*ONCE, *ONCE)


@pytest.mark.parametrize(
    ("program", "frozen", "expected"),
    [
        # Its output requires no grad, so that nothing gathers it for its backward but the next one.
        (AGAIN, ("0.weight",), {"0"}),
        # Between the two something takes its time.
        ((*ONCE, Step(), *ONCE), ("0.weight",), set()),
        (ONCE, ("0.weight",), set()),
        # The backward comes to it on the way to the first.
        (AGAIN, ("1.weight",), set()),
        (AGAIN, (), set()),
        # Without any gradient no backward begins.
        (AGAIN, ("0.weight", "1.weight"), set()),
    ],
)
def test_first_units_that_are_frozen(
    program: tuple[Op, ...], frozen: tuple[str, ...], expected: set[str]
) -> None:
    case = make(fsdp2("", "0", "1"), model=CHAIN, program=program, frozen=frozen)
    a = anatomy(case)
    assert vain_gathers(a).units == expected
    assert unit_features(a, "0")["gathered_in_vain"] == ("on" if expected else "off")


TWICE: tuple[Op, ...] = (Forward(), Backward(again=True))


@pytest.mark.parametrize(
    ("program", "frozen", "expected"),
    [
        (TWICE, ("0.weight",), {"", "1"}),
        ((Forward(), Forward(), Backward(each=True)), ("0.weight",), {"", "1"}),
        # A forward waits for all that computation has come to.
        (AGAIN, ("0.weight",), set()),
        ((*ONCE, *TWICE), ("0.weight",), {"", "1"}),
        (TWICE, (), set()),
        (TWICE, ("0.weight", "1.weight"), set()),
    ],
)
def test_another_backward_follows(
    program: tuple[Op, ...], frozen: tuple[str, ...], expected: set[str]
) -> None:
    case = make(fsdp2("", "0", "1"), model=CHAIN, program=program, frozen=frozen)
    check(case)
    a = anatomy(case)
    assert vain_gathers(a).reached_next == expected
    assert unit_features(a, "1")["behind_vain_gather"] == ("on" if expected else "off")


def test_backward_comes_to_it_for_its_input() -> None:
    data = Dense(width=4, requires_grad=True)
    plan = fsdp2("", "0", "1")
    case = make(plan, model=CHAIN, program=AGAIN, frozen=("0.weight",), inputs=data)
    assert vain_gathers(anatomy(case)).units == set()


def test_what_a_list_names_and_no_forward_calls() -> None:
    model = Sequential(children=(Idle(), Linear(out=4)))
    units = (
        Fsdp2Unit(path=""),
        Fsdp2Unit(path="0.idle"),
        Fsdp2Unit(path="1", prefetched_in_backward=("0.idle",)),
    )
    case = make(Fsdp2Plan(units=units), model=model, program=AGAIN)
    assert vain_gathers(anatomy(case)).units == {"0.idle"}


def test_of_fsdp1_nothing_is_said() -> None:
    case = make(fsdp1("", "0", "1"), model=CHAIN, program=AGAIN, frozen=("0.weight",))
    a = anatomy(case)
    assert vain_gathers(a).units == set()
    assert "gathered_in_vain" not in unit_features(a, "0")


def test_a_list_is_followed_in_each_of_the_backwards() -> None:
    model = Sequential(children=(Idle(), Linear(out=4)))
    units = (
        Fsdp2Unit(path=""),
        Fsdp2Unit(path="0.idle"),
        Fsdp2Unit(path="1", prefetched_in_backward=("0.idle",)),
    )
    case = make(Fsdp2Plan(units=units), model=model, program=(*TWICE, *ONCE))
    assert vain_gathers(anatomy(case)).units == {"0.idle"}
    frozen = make(fsdp2("", "0", "1"), model=CHAIN, program=(*TWICE, *ONCE), frozen=("0.weight",))
    assert vain_gathers(anatomy(frozen)).units == set()


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        # The backward comes to 1 before 0.
        ({"0": ("1",)}, {"1"}),
        ({"1": ("0",)}, set()),
        # It is through with what holds 0 at the end.
        ({"0": ("",)}, set()),
        ({"": ("1", "0")}, set()),
    ],
)
def test_what_a_list_names_that_the_backward_is_through_with(
    lists: dict[str, tuple[str, ...]], expected: set[str]
) -> None:
    model = Sequential(children=(*CHAIN.children, Linear(out=4)))
    paths = ("", "0", "1")
    units = tuple(Fsdp2Unit(path=p, prefetched_in_backward=lists.get(p, ())) for p in paths)
    case = make(Fsdp2Plan(units=units), model=model, program=AGAIN)
    check(case)
    assert vain_gathers(anatomy(case)).units == expected
    again = anatomy(make(case.plan, model=model, program=TWICE))
    assert vain_gathers(again).reached_next == ({*paths} if expected else set())


@pytest.mark.parametrize(
    ("no_grad", "lists", "expected"),
    [
        ("off", (), set()),
        # Each module is called a second time without grad, and backward takes the latest calls.
        ("body", (), {"1.body.1"}),
        # Of the second of these units alone, and it comes to the first after that.
        ("body", ("1.body.0",), {"1.body.1"}),
    ],
)
def test_calls_without_grad_count_in_the_order(
    no_grad: Literal["off", "body"], lists: tuple[str, ...], expected: set[str]
) -> None:
    model = Sequential(children=(Linear(out=4), Repeat(body=CHAIN, no_grad=no_grad)))
    units = (
        Fsdp2Unit(path=""),
        Fsdp2Unit(path="1.body.0"),
        Fsdp2Unit(path="1.body.1", prefetched_in_backward=lists),
    )
    case = make(Fsdp2Plan(units=units), model=model, program=AGAIN)
    check(case)
    assert vain_gathers(anatomy(case)).units == expected


LOOK = Forward(grad=False)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        # Seen on gloo (2.13): all-gathers of 0, 1; 0, 1; and in backward of 1, 0 and 1.
        ((LOOK, *AGAIN), {"1"}),
        # A step later the calls are still there.
        ((*ONCE, LOOK, Step(), *AGAIN), {"1"}),
        # The next backward has forgotten them.
        ((LOOK, *ONCE, Step(), *AGAIN), set()),
        ((LOOK, Rebuild(plan=fsdp2("", "0", "1")), *AGAIN), set()),
    ],
)
def test_forwards_without_a_backward_count_in_the_order(
    program: tuple[Op, ...], expected: set[str]
) -> None:
    case = make(fsdp2("", "0", "1"), model=CHAIN, program=program)
    check(case)
    assert vain_gathers(anatomy(case)).units == expected


def test_a_list_takes_the_place_of_the_order() -> None:
    model = Sequential(children=(Linear(out=4), Repeat(body=CHAIN, no_grad="body")))
    units = (
        Fsdp2Unit(path=""),
        Fsdp2Unit(path="1.body.0", prefetched_in_backward=("",)),
        Fsdp2Unit(path="1.body.1"),
    )
    case = make(Fsdp2Plan(units=units), model=model, program=AGAIN)
    assert vain_gathers(anatomy(case)).units == set()


def test_a_unit_around_others_ends_after_them() -> None:
    model = Repeat(body=Sequential(children=(Lora(out=4), Linear(out=4))), no_grad="body")
    case = make(fsdp2("", "body", "body.0", "body.0.base"), model=model, program=AGAIN)
    check(case)
    # What base asks for is body, as the last one before it; in backward that holds it still.
    assert vain_gathers(anatomy(case)).units == set()


@pytest.mark.parametrize(
    ("frozen", "expected"),
    [
        # What its first call puts out requires no grad, and what the second does.
        (("body.0.weight",), {"body.0"}),
        ((), set()),
        (("body.1.weight",), set()),
    ],
)
def test_a_frozen_first_unit_that_is_called_again_is_gathered_for_its_first_call(
    frozen: tuple[str, ...], expected: set[str]
) -> None:
    paths = ("", "body.0", "body.1")
    case = make(fsdp2(*paths), model=Repeat(body=CHAIN), program=AGAIN, frozen=frozen)
    check(case)
    assert vain_gathers(anatomy(case)).units == expected
    again = anatomy(make(case.plan, model=case.model, program=TWICE, frozen=frozen))
    assert vain_gathers(again).reached_next == ({*paths} if expected else set())

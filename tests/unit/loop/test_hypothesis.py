from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.errors import PoolError
from fsdpfuzz.loop import (
    PROFILES,
    PROPERTIES,
    drawn,
    register_profiles,
    scope_now,
    set_scope,
)
from fsdpfuzz.loop._derived import derived_seed
from fsdpfuzz.loop._hypothesis import StopRound, drive
from fsdpfuzz.strategies.drawing import Draw, choosing
from tests.unit.loop.standins import Toy, make_case, outs_of, toy_cases


def recorded(seed: int = 1, number: int = 40) -> list[CaseSpec]:
    cases: list[CaseSpec] = []
    drive(toy_cases(), cases.append, seed=seed, max_examples=number)
    return cases


def test_the_seed_alone_decides_on_the_cases() -> None:
    assert recorded() == recorded()
    assert recorded() != recorded(seed=2)


def test_the_global_profile_has_no_say() -> None:
    expected = recorded()
    before = settings.get_current_profile_name()
    settings.register_profile("odd", derandomize=True, max_examples=3, deadline=1)
    settings.load_profile("odd")
    try:
        assert recorded() == expected
    finally:
        settings.load_profile(before)


@pytest.mark.parametrize("error", [PoolError("no ranks"), KeyboardInterrupt(), AssertionError()])
def test_whatever_the_body_raises_comes_out_at_once(error: BaseException) -> None:
    calls: list[CaseSpec] = []

    def fail(case: CaseSpec) -> None:
        calls.append(case)
        raise error

    with pytest.raises(type(error)) as caught:
        drive(toy_cases(), fail, seed=1, max_examples=40)
    assert caught.value is error
    assert len(calls) == 1


def test_a_round_can_be_left() -> None:
    calls: list[CaseSpec] = []

    def leave(case: CaseSpec) -> None:
        calls.append(case)
        raise StopRound

    drive(toy_cases(), leave, seed=1, max_examples=40)
    assert len(calls) == 1


def test_what_is_filtered_away_is_passed_over() -> None:
    wide = toy_cases().filter(lambda case: max(outs_of(case)) > 400)
    calls: list[CaseSpec] = []
    drive(wide, calls.append, seed=1, max_examples=40)
    assert 10 < len(calls) <= 40
    assert all(max(outs_of(case)) > 400 for case in calls)


def test_the_first_case_is_the_simplest() -> None:
    cases = recorded()
    assert cases[0] == make_case((1,), steps=1)
    assert cases[0] not in cases[1:5]


def test_derived_seeds_are_stable_and_differ() -> None:
    assert derived_seed(1, "parity", 0) == 12948687653426616311
    assert len({derived_seed(s, p, r) for s in (1, 11) for p in ("a", "1") for r in (0, 1)}) == 8


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_profiles_are_registered(profile: object) -> None:
    register_profiles()
    name = f"fsdpfuzz-{next(key for key, value in PROFILES.items() if value is profile)}"
    registered = settings.get_profile(name)
    assert registered.deadline is None
    assert registered.max_examples == PROFILES[name.removeprefix("fsdpfuzz-")].max_examples


def test_cases_are_drawn_within_the_scope_at_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    by_scope = Toy(
        name="toy",
        about="",
        draws=lambda scope: st.sampled_from(
            [make_case(world_size=size) for size in scope.world_sizes]
        ),
    )
    monkeypatch.setitem(PROPERTIES, "toy", by_scope)
    strategy, sizes, before = drawn("toy"), set[int](), scope_now()
    try:
        for size in (3, 4):
            set_scope(replace(before, world_sizes=(size,)))
            drive(strategy, lambda case: sizes.add(case.world_size), seed=1, max_examples=3)
    finally:
        set_scope(before)
    assert sizes == {3, 4}


def numbers(second: int) -> list[tuple[int, int]]:
    """What a seed gives for two purposes, of which the second makes ``second`` choices."""

    @st.composite
    def pairs(draw: Draw) -> tuple[int, int]:
        with choosing("one"):
            one = draw(st.integers(0, 127))
        with choosing("two"):
            for _ in range(second):
                draw(st.integers(0, 127))
        with choosing("three"):
            return one, draw(st.integers(0, 127))

    found: list[tuple[int, int]] = []
    drive(pairs(), found.append, seed=3, max_examples=20)  # type: ignore[arg-type]
    return found


def test_choices_of_one_purpose_stay_when_another_makes_more() -> None:
    few, many = numbers(1), numbers(30)
    assert few == many
    assert len({one for one, _ in few}) > 5
    assert [one for one, _ in few] != [three for _, three in few]

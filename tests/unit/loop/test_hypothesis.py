from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.database import InMemoryExampleDatabase
from hypothesis.internal.conjecture import engine

from fsdpfuzz.errors import PoolError
from fsdpfuzz.loop import PROFILES, register_profiles
from fsdpfuzz.loop._hypothesis import (
    GENERATE,
    GENERATE_AND_SHRINK,
    REUSE_AND_SHRINK,
    PrefixedDatabase,
    StopRound,
    derived_seed,
    drive,
    shrink_limits,
)
from fsdpfuzz.spec import CaseSpec
from fsdpfuzz.verdict import error_type
from tests.unit.loop.standins import finding, make_case, outs_of, toy_cases


def driven(
    body: object, phases: tuple[object, ...] = GENERATE, seed: int = 1, database: object = None
) -> None:
    drive(
        toy_cases(),
        body,  # type: ignore[arg-type]
        profile=PROFILES["dev"],
        phases=phases,  # type: ignore[arg-type]
        seed=seed,
        max_examples=40,
        database=database,  # type: ignore[arg-type]
    )


def recorded(phases: tuple[object, ...], seed: int = 1) -> list[CaseSpec]:
    cases: list[CaseSpec] = []
    driven(cases.append, phases, seed)
    return cases


def test_the_seed_alone_decides_on_the_cases() -> None:
    assert recorded(GENERATE) == recorded(GENERATE) == recorded(GENERATE_AND_SHRINK)
    assert recorded(GENERATE) != recorded(GENERATE, seed=2)


def test_the_global_profile_has_no_say() -> None:
    expected = recorded(GENERATE)
    before = settings.get_current_profile_name()
    settings.register_profile("odd", derandomize=True, max_examples=3, deadline=1)
    settings.load_profile("odd")
    try:
        assert recorded(GENERATE) == expected
    finally:
        settings.load_profile(before)


def test_a_finding_stays_inside_and_other_errors_do_not() -> None:
    def find(case: CaseSpec) -> None:
        raise error_type("a/mismatch/b")(finding("a"))

    driven(find)
    driven(find, GENERATE_AND_SHRINK)
    calls: list[CaseSpec] = []

    def fail(case: CaseSpec) -> None:
        calls.append(case)
        raise PoolError("no ranks")

    with pytest.raises(PoolError, match="no ranks"):
        driven(fail, GENERATE_AND_SHRINK)
    assert len(calls) == 1


def test_several_findings_stay_inside() -> None:
    def find(case: CaseSpec) -> None:
        key = "even" if outs_of(case)[0] % 2 else "odd"
        raise error_type(key)(finding(key))

    driven(find, GENERATE_AND_SHRINK)


def test_a_body_that_changes_its_mind_does_not_end_the_run() -> None:
    answers = iter([False] * 5 + [True] + [False] * 10_000)

    def find(case: CaseSpec) -> None:
        if next(answers):
            raise error_type("a/mismatch/b")(finding("a"))

    driven(find, GENERATE_AND_SHRINK)


def test_a_round_can_be_left() -> None:
    calls: list[CaseSpec] = []

    def leave(case: CaseSpec) -> None:
        calls.append(case)
        raise StopRound

    driven(leave)
    assert len(calls) == 1


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    def find(case: CaseSpec) -> None:
        if max(outs_of(case)) > 100:
            raise error_type("a/mismatch/b")(finding("a"))

    driven(find, GENERATE_AND_SHRINK)
    assert capfd.readouterr() == ("", "")


def test_an_empty_database_has_nothing_to_reuse() -> None:
    calls: list[CaseSpec] = []
    driven(calls.append, REUSE_AND_SHRINK, database=InMemoryExampleDatabase())
    assert calls == []


def test_properties_share_a_database_without_mixing() -> None:
    shared = InMemoryExampleDatabase()
    one, two = PrefixedDatabase(shared, "one"), PrefixedDatabase(shared, "two")
    one.save(b"key", b"1")
    two.save(b"key", b"2")
    assert set(one.fetch(b"key")) == {b"1"}
    one.delete(b"key", b"1")
    assert set(one.fetch(b"key")) == set()
    assert set(two.fetch(b"key")) == {b"2"}


def test_limits_of_hypothesis_are_raised_and_put_back() -> None:
    before = (engine.MAX_SHRINKS, engine.MAX_SHRINKING_SECONDS)
    within: list[tuple[int, int]] = []

    def fail_within(seconds: float) -> None:
        with shrink_limits(seconds):
            within.append((engine.MAX_SHRINKS, engine.MAX_SHRINKING_SECONDS))
            raise KeyError

    for seconds in (1_800.0, 60.0):
        with pytest.raises(KeyError):
            fail_within(seconds)
        assert before == (engine.MAX_SHRINKS, engine.MAX_SHRINKING_SECONDS)
    raised, kept = within
    assert raised[0] > before[0]
    assert raised[1] >= 1_800
    assert kept == before


def test_a_hypothesis_without_those_limits_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(engine, "MAX_SHRINKS")
    with shrink_limits(1_800.0):
        assert not hasattr(engine, "MAX_SHRINKS")


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
    from fsdpfuzz.loop import PROPERTIES, Property, Scope, drawn, scope_now, set_scope

    by_scope = Property(
        name="toy",
        about="",
        strategy=lambda scope: st.sampled_from(
            [make_case(world_size=size) for size in scope.world_sizes]
        ),
    )
    monkeypatch.setitem(PROPERTIES, "toy", by_scope)
    strategy, sizes, before = drawn("toy"), set(), scope_now()
    try:
        for size in (3, 4):
            set_scope(Scope(world_sizes=(size,)))
            drive(
                strategy,
                lambda case: sizes.add(case.world_size),
                profile=PROFILES["dev"],
                phases=GENERATE,
                seed=1,
                max_examples=3,
                database=None,
            )
    finally:
        set_scope(before)
    assert sizes == {3, 4}

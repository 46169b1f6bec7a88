from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import CaseSpec, digest
from fsdpfuzz.loop import Rate, keep_raised
from fsdpfuzz.observations import Hang, Observation
from fsdpfuzz.verdict import Finding, FindingError, Verdict, error_type
from tests.unit.loop.standins import Bench, FakeKnown, finding, make_case, outs_of, verdict_of

BIG = finding("big")
CASE = make_case((7,))


def fails_on(*numbers: int) -> list[bool]:
    """Whether the n-th run of a case fails, counted from 1."""
    return [n in numbers for n in range(1, 101)]


def judge_by(bench: Bench, pattern: list[bool], *findings: Finding) -> None:
    outcomes = iter(pattern)
    bench.judge = lambda _case, _seen: verdict_of(*findings) if next(outcomes) else verdict_of()


def test_a_case_runs_once(bench: Bench) -> None:
    with bench.session() as session:
        first, second = session.examine(CASE), session.examine(make_case((7,)))
    assert (first.fresh, second.fresh) == (True, False)
    assert second.verdict == first.verdict
    assert bench.runs == {digest(CASE): 1}


def test_the_cache_forgets_the_longest_unused(bench: Bench) -> None:
    cases = [make_case((n,)) for n in (1, 2, 3)]
    with bench.session(cache_size=2) as session:
        for case in (cases[0], cases[1], cases[0], cases[2]):
            session.examine(case)
        assert [session.is_cached(case) for case in cases] == [True, False, True]


def test_the_case_is_on_disk_while_it_runs(bench: Bench) -> None:
    during: list[str | None] = []
    bench.before = lambda _case: during.append(bench.archive.open)
    with bench.session() as session:
        session.examine(CASE)
    assert during == [digest(CASE)]
    assert bench.archive.open is None


def test_a_failing_case_is_on_disk_until_it_is_kept(bench: Bench) -> None:
    bench.judge = lambda case, _: verdict_of(*([finding("bad")] if case == CASE else []))
    with bench.session() as session:
        session.examine(CASE)
        assert bench.archive.open == digest(CASE)
        session.settle()
        assert bench.archive.open is None
        session.begin(make_case(seed=1))
        session.settle()
        assert bench.archive.open == digest(make_case(seed=1)), "this one is under way"
        session.examine(make_case(seed=1))
        assert bench.archive.open is None


def test_a_failing_case_stays_on_disk_while_others_are_run_beside_it(bench: Bench) -> None:
    bench.judge = lambda _case, _seen: verdict_of(BIG)
    other = make_case(seed=1)
    with bench.session() as session:
        session.examine(CASE)
        session.examine(other, beside=True)
        session.confirm(other)
        assert bench.archive.open == digest(CASE)
        session.settle()
        assert bench.archive.open is None
    assert bench.archive.begun == [digest(CASE)]


def test_what_is_abandoned_stays_on_disk(bench: Bench) -> None:
    bench.judge = lambda _case, _seen: verdict_of(BIG)
    with bench.session() as session:
        session.examine(CASE)
        session.abandon()
        assert all(pool.closed for pool in bench.pools)
    assert bench.archive.open == digest(CASE), "judged, but not kept"
    with bench.session() as session:
        session.begin(make_case(seed=1))
        session.abandon()
    assert bench.archive.open == digest(make_case(seed=1))


def test_an_error_keeps_the_failing_case_on_disk(bench: Bench) -> None:
    bench.judge = lambda _case, _seen: verdict_of(BIG)

    def fail() -> None:
        with bench.session() as session:
            session.examine(CASE)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert bench.archive.open == digest(CASE)


def test_a_case_that_was_begun_is_put_on_disk_and_run_once(bench: Bench) -> None:
    with bench.session() as session:
        session.begin(CASE)
        assert session.examine(CASE).fresh
        session.begin(CASE)
        assert not session.examine(CASE).fresh
    assert bench.archive.begun == [digest(CASE)]
    assert bench.runs == {digest(CASE): 1}


def test_a_case_during_which_the_controller_dies_stays_on_disk(bench: Bench) -> None:
    def die(case: CaseSpec) -> None:
        raise KeyboardInterrupt

    bench.before = die
    with bench.session() as session, pytest.raises(KeyboardInterrupt):
        session.examine(CASE)
    assert bench.archive.open == digest(CASE)


def test_a_finding_is_run_again_before_it_is_believed(bench: Bench) -> None:
    bench.judge = lambda _case, _seen: verdict_of(BIG)
    with bench.session() as session:
        examined = session.examine(CASE)
        assert [name for name, _ in bench.log] == [digest(CASE), "closed", *[digest(CASE)] * 2]
        session.examine(make_case((8,)))
    assert examined.news == (BIG,)
    assert examined.rates == {}
    assert bench.runs[digest(make_case((8,)))] == 1, "the key is confirmed by now"


def test_a_flaky_finding_is_reported_with_its_rate(bench: Bench) -> None:
    judge_by(bench, fails_on(1, 4, 9), BIG)
    with bench.session() as session:
        examined = session.examine(CASE)
        again = session.examine(CASE)
    assert examined.news == (BIG,)
    assert examined.rates[BIG.key] == Rate(failed=3, runs=10)
    assert str(examined.rates[BIG.key]) == "failed 3 of 10"
    assert again.rates == examined.rates


def test_a_finding_that_only_a_rerun_shows_is_flaky_too(bench: Bench) -> None:
    other = finding("other")
    verdicts = iter(
        [verdict_of(BIG), verdict_of(BIG, other)] + [verdict_of(BIG, other)] + [verdict_of(BIG)] * 7
    )
    bench.judge = lambda _case, _seen: next(verdicts)
    with bench.session() as session:
        examined = session.examine(CASE)
    assert examined.news == (BIG, other)
    assert examined.rates == {other.key: Rate(failed=2, runs=10)}


def test_a_hang_is_run_again_with_patience(bench: Bench) -> None:
    bench.judge = lambda _case, _seen: verdict_of(finding("no_hang", "hang"))
    with bench.session() as session:
        assert session.examine(CASE).news
    name = digest(CASE)
    assert bench.log[:4] == [(name, False), ("closed", False), (name, True), (name, False)]


def test_a_hang_that_does_not_come_back_was_a_slow_case(bench: Bench) -> None:
    hangs = iter([True, False])
    bench.change = lambda seen: (
        msgspec.structs.replace(seen, hang=Hang(ranks=(0,), deadline=3.0, starved=True))
        if next(hangs)
        else seen
    )
    judge_by(bench, fails_on(1), finding("no_hang", "hang"))
    with bench.session() as session:
        examined = session.examine(CASE)
    assert (examined.verdict.status, examined.unconfirmed) == ("passed", ())
    assert [patience for name, patience in bench.log if name == digest(CASE)] == [False, True]


def test_a_known_finding_is_no_news_and_is_not_run_again(bench: Bench) -> None:
    bench.judge = lambda _case, _seen: verdict_of(BIG)
    bench.known = FakeKnown(lambda case, _found: "K1" if outs_of(case) == (7,) else None)
    with bench.session() as session:
        known, new = session.examine(CASE), session.examine(make_case((8,)))
    assert known.known == {BIG.key: "K1"}
    assert known.news == ()
    assert new.news == (BIG,)
    assert bench.runs == {known.digest: 1, new.digest: 3}


def test_check_raises_the_type_of_the_first_new_finding(bench: Bench) -> None:
    known = finding("known")
    bench.known = FakeKnown(lambda _case, found: "K1" if found == known else None)
    bench.judge = lambda _case, _seen: verdict_of(known, BIG)
    with bench.session() as session:
        with pytest.raises(error_type(BIG.key)) as caught:
            session.check(CASE, "toy")
        assert caught.value.finding == BIG
    with bench.session(strict=True) as session, pytest.raises(error_type(known.key)):
        session.check(CASE, "toy")


def test_check_keeps_the_first_case_at_once_and_the_last_when_asked(bench: Bench) -> None:
    bench.judge = lambda _case, _seen: verdict_of(BIG)
    with bench.session() as session:
        for out in (9, 8, 7):
            with pytest.raises(FindingError):
                session.check(make_case((out,)), "toy")
        assert [outs_of(kept.case) for kept in bench.archive.kept] == [(9,)]
        keep_raised(session, smaller=False)
        assert [outs_of(kept.case) for kept in bench.archive.kept] == [(9,), (7,)]
        assert keep_raised(session) == []


def test_what_check_raised_is_reduced_before_it_is_kept(bench: Bench) -> None:
    bench.judge = lambda case, _seen: verdict_of(*[BIG] * (max(outs_of(case)) > 5))
    with bench.session() as session:
        with pytest.raises(FindingError):
            session.check(make_case((7, 3), steps=2), "toy")
        (path,) = keep_raised(session)
    last = bench.archive.kept[-1]
    assert path.name.endswith(f"{digest(last.case)}.json")
    assert outs_of(last.case) == (6,)
    assert last.shrink_steps > 0


def test_a_flaky_one_that_check_raised_is_kept_as_it_is(bench: Bench) -> None:
    judge_by(bench, fails_on(1, 4, 9), BIG)
    with bench.session() as session:
        with pytest.raises(FindingError):
            session.check(CASE, "toy")
        keep_raised(session)
    assert {digest(kept.case) for kept in bench.archive.kept} == {digest(CASE)}
    assert bench.runs == {digest(CASE): 10}


def test_a_finding_that_no_plainer_case_shows_follows_from_the_known_defect(bench: Bench) -> None:
    """Outside of the region one finding goes away and the other one stays."""
    alone, follows = finding("alone"), finding("follows")
    outside = make_case((3,))
    bench.judge = lambda case, _seen: verdict_of(alone, *[follows] * (case != outside))
    bench.known = FakeKnown(
        region=lambda case: ("K1",) if case == CASE else (),
        ways_out=lambda _case, _name: [outside],
    )
    during: list[str | None] = []
    bench.before = lambda _case: during.append(bench.archive.open)
    with bench.session() as session:
        examined = session.explained(session.examine(CASE))
    assert examined.known == {follows.key: "K1"}
    assert examined.news == (alone,)
    assert set(during) == {digest(CASE)}, "it is not lost while the others run"


def test_a_finding_is_not_explained_where_nothing_lies_outside(bench: Bench) -> None:
    bench.judge = lambda _case, _seen: verdict_of(BIG)
    bench.known = FakeKnown(region=lambda _case: ("K1",))
    with bench.session() as session:
        assert session.explained(session.examine(CASE)).news == (BIG,)


def test_pools_start_when_needed_and_end_with_the_session(bench: Bench) -> None:
    with bench.session() as session:
        assert bench.pools == []
        for world_size in (2, 4, 2):
            session.examine(make_case((world_size,), world_size=world_size))
        for pool in bench.pools:
            pool.restarts = 2
        assert session.restarts == 4
    assert [pool.world_size for pool in bench.pools] == [2, 4]
    assert all(pool.closed for pool in bench.pools)
    assert session.restarts == 4


def test_a_clean_observation_is_not_held(bench: Bench) -> None:
    with bench.session() as session:
        assert session.examine(CASE).observation is None


def test_the_judge_sees_the_case_and_its_observation(bench: Bench) -> None:
    seen: list[tuple[CaseSpec, str]] = []

    def judge(case: CaseSpec, observation: Observation) -> Verdict:
        seen.append((case, observation.digest))
        return verdict_of()

    bench.judge = judge
    with bench.session() as session:
        session.examine(CASE)
        assert session.torch == "9.9.9"
    assert seen == [(CASE, digest(CASE))]

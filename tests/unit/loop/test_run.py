from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from fsdpfuzz.case import CaseSpec, digest
from fsdpfuzz.errors import PoolError, UsageError
from fsdpfuzz.loop import (
    DIGESTS,
    PROPERTIES,
    CaseDone,
    FindingDone,
    FindingMet,
    Notice,
    Profile,
    Rate,
    RunFinished,
    RunStarted,
    Shrinking,
    Stopped,
    Summary,
    run,
)
from fsdpfuzz.loop._ledger import Ledger
from fsdpfuzz.observations import Observation
from fsdpfuzz.verdict import Verdict
from tests.unit.loop.standins import (
    Bench,
    FakeKnown,
    Toy,
    finding,
    make_case,
    outs_of,
    steps_of,
    toy_cases,
    verdict_of,
)

BIG, LONG = finding("big"), finding("long")


def is_big(case: CaseSpec) -> bool:
    return max(outs_of(case)) > 100


def is_long(case: CaseSpec) -> bool:
    return steps_of(case) >= 3


def two_faults(case: CaseSpec, observation: Observation) -> Verdict:
    wrong = [(BIG, is_big(case)), (LONG, is_long(case) and len(outs_of(case)) >= 2)]
    return verdict_of(*(found for found, holds in wrong if holds))


def started(bench: Bench, number: int, **changes: object) -> Summary:
    with bench.session() as session:
        return run(bench.settings(number, **changes), bench.events.append, session=session)


def digests(folder: Path) -> list[str]:
    return (folder / DIGESTS).read_text().split()


def test_the_next_case_is_drawn_while_the_ranks_are_at_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[tuple[str, str]] = []

    def note(case: CaseSpec) -> CaseSpec:
        order.append(("drawn", digest(case)))
        return case

    toy = Toy(name="toy", about="", draws=lambda scope: toy_cases(scope.world_sizes).map(note))
    monkeypatch.setitem(PROPERTIES, "toy", toy)
    bench.begun = lambda case: order.append(("begun", digest(case)))
    bench.before = lambda case: order.append(("awaited", digest(case)))
    started(bench, 20, round_examples=6)
    for one, other in pairwise(digests(bench.folder)):
        begun, awaited = order.index(("begun", one)), order.index(("awaited", one))
        assert begun < order.index(("drawn", other)) < awaited < order.index(("begun", other))


def test_every_property_is_met_within_the_first_twenty_cases(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tuple(name for name in PROPERTIES if name != "toy")
    for name in real:
        monkeypatch.setitem(PROPERTIES, name, Toy(name=name, about=""))
    started(bench, 600, properties=real)
    done = [event.property_name for event in bench.events if isinstance(event, CaseDone)]
    assert set(done[:20]) == set(real)
    for end in range(100, 601, 100):
        assert set(done[end - 100 : end]) == set(real), "and again and again"
    assert [done.count(name) for name in real] == [100] * len(real)


def test_the_properties_are_what_drawing_can_look_at_most() -> None:
    from fsdpfuzz.strategies import FOCUSES

    assert tuple(name for name in PROPERTIES if name != "toy") == FOCUSES


def test_a_clean_run_runs_as_many_different_cases_as_asked(bench: Bench) -> None:
    summary = started(bench, 130, round_examples=50)
    assert summary.counts.examples == summary.counts.passed == 130
    assert set(bench.runs.values()) == {1}
    assert len(bench.runs) == 130
    assert digests(bench.folder) == list(bench.runs)
    assert summary.exit_code == 0


def test_events_come_in_order(bench: Bench) -> None:
    bench.judge = two_faults
    summary = started(bench, 40)
    assert isinstance(bench.events[0], RunStarted)
    assert bench.events[-1] == RunFinished(summary=summary)
    done = [event for event in bench.events if isinstance(event, CaseDone)]
    assert [event.index for event in done] == list(range(1, 41))
    kinds = [type(event) for event in bench.events]
    assert kinds.index(FindingMet) < kinds.index(Shrinking) < kinds.index(FindingDone)


def test_two_findings_of_one_run_shrink_separately(bench: Bench) -> None:
    bench.judge = two_faults
    summary = started(bench, 60)
    assert {found.finding.key for found in summary.findings} == {BIG.key, LONG.key}
    assert all(found.shrunk for found in summary.findings)
    last = {kept.finding.key: kept.case for kept in bench.archive.kept}
    assert outs_of(last[BIG.key]) == (101,)
    assert steps_of(last[BIG.key]) <= 1
    assert (outs_of(last[LONG.key]), steps_of(last[LONG.key])) == ((1, 1), 3)
    assert summary.exit_code == 1


def test_the_failing_case_is_kept_before_it_is_shrunk(bench: Bench) -> None:
    bench.judge = two_faults
    summary = started(bench, 60)
    by_key = {found.finding.key: found for found in summary.findings}
    first = next(kept for kept in bench.archive.kept if kept.finding.key == BIG.key)
    assert digest(first.case) == digests(bench.folder)[by_key[BIG.key].examples_to_find - 1]
    assert first.shrink_steps == 0


def test_findings_change_nothing_in_what_is_generated(bench: Bench, tmp_path: Path) -> None:
    other = Bench(tmp_path / "other")
    bench.judge = two_faults
    started(bench, 120, seed=5, round_examples=50)
    started(other, 120, seed=5, round_examples=50)
    assert digests(bench.folder) == digests(other.folder)
    started(other, 120, seed=6, round_examples=50)
    assert digests(bench.folder) != digests(other.folder)


def test_reducing_runs_no_case_again_but_the_smallest(bench: Bench) -> None:
    bench.judge = two_faults
    started(bench, 60)
    confirmed = {digest(kept.case) for kept in bench.archive.kept}
    assert {name for name, number in bench.runs.items() if number > 1} == confirmed


def test_a_known_finding_fails_nothing_and_is_not_shrunk(bench: Bench) -> None:
    bench.judge = two_faults
    bench.known = FakeKnown(lambda _case, found: "K7" if found == BIG else None)
    summary = started(bench, 60)
    known = [found for found in summary.findings if found.known == "K7"]
    assert [found.finding.key for found in known] == [BIG.key]
    assert not known[0].shrunk
    assert {event.key for event in bench.events if isinstance(event, Shrinking)} == {LONG.key}
    bench.known = FakeKnown(lambda _case, _found: "K7")
    assert started(bench, 30).exit_code == 0
    assert started(bench, 30, strict=True).exit_code == 1


def test_a_second_fault_beside_a_known_one_is_found(bench: Bench) -> None:
    bench.judge = lambda case, _seen: verdict_of(*[BIG] * is_big(case))
    bench.known = FakeKnown(lambda case, _found: "K7" if steps_of(case) == 1 else None)
    summary = started(bench, 60)
    assert {found.known for found in summary.findings} == {"K7", None}
    new = [kept for kept in bench.archive.kept if steps_of(kept.case) != 1]
    assert outs_of(new[-1].case) == (101,)


def test_a_flaky_finding_ends_nothing_and_is_not_shrunk(bench: Bench) -> None:
    def judge(case: CaseSpec, observation: Observation) -> Verdict:
        flaky = is_big(case) and bench.runs[digest(case)] in {1, 5, 7}
        return verdict_of(*[BIG] * flaky)

    bench.judge = judge
    summary = started(bench, 60)
    (found,) = summary.findings
    assert summary.counts.examples == 60
    assert found.rate == Rate(failed=3, runs=10)
    assert found.message == "2, but should be 1 (failed 3 of 10)"
    assert not found.shrunk
    assert not any(isinstance(event, Shrinking) for event in bench.events)
    assert [event for event in bench.events if isinstance(event, FindingDone)]


def test_a_smallest_case_that_turns_out_flaky_is_not_taken(bench: Bench) -> None:
    def judge(case: CaseSpec, observation: Observation) -> Verdict:
        small = outs_of(case) == (101,)
        return verdict_of(*[BIG] * (is_big(case) and (not small or bench.runs[digest(case)] < 2)))

    bench.judge = judge
    (found,) = started(bench, 40).findings
    assert found.rate is None
    assert not found.shrunk
    assert found.digest == digest(bench.archive.kept[0].case)


@pytest.mark.parametrize(("limit", "value"), [("shrink_tries", 3), ("shrink_seconds", 0.0)])
def test_reducing_stops_at_its_limit(bench: Bench, limit: str, value: Any) -> None:
    bench.judge = lambda case, _seen: verdict_of(*[BIG] * is_big(case))
    short = Profile(name="toy", max_examples=40, ablation_seconds=0.0, **{limit: value})
    with bench.session(profile=short) as session:
        run(bench.settings(40, profile=short), bench.events.append, session=session)
    tries = [event.tries for event in bench.events if isinstance(event, Shrinking)]
    assert tries == [1, 2, 3][: int(value)]
    assert len(bench.runs) == 40 + int(value)


def test_ranks_that_do_not_start_end_the_run_with_a_summary(bench: Bench) -> None:
    def fail(case: CaseSpec) -> None:
        if is_big(case):
            raise PoolError("ranks do not start")

    bench.before = fail
    summary = started(bench, 60)
    assert (summary.failure, summary.exit_code) == ("ranks do not start", 3)
    assert 0 < summary.counts.examples < 60
    assert bench.archive.begun[-1] == bench.archive.open
    assert bench.archive.begun.count(bench.archive.open) == 1


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (Stopped(15), 143)])
@pytest.mark.parametrize("during", [CaseDone, Shrinking])
def test_a_signal_ends_the_run_with_a_summary(
    bench: Bench, stop: BaseException, code: int, during: type
) -> None:
    bench.judge = two_faults

    def emit(event: object) -> None:
        bench.events.append(event)  # type: ignore[arg-type]
        if sum(isinstance(seen, during) for seen in bench.events) == 9:
            bench.before = raising

    def raising(case: CaseSpec) -> None:
        raise stop

    with bench.session() as session:
        summary = run(bench.settings(60), emit, session=session)
    assert summary.exit_code == code
    assert 0 < summary.counts.examples < 60
    assert summary.counts.examples == len(digests(bench.folder))
    assert bench.archive.open is not None, "the next run begins with it"
    assert all(pool.closed for pool in bench.pools)
    assert bench.events[-1] == RunFinished(summary=summary)
    if during is Shrinking:
        assert summary.findings[0].shrunk, "the smallest case so far is taken"


def test_a_case_under_way_when_the_run_is_ended_is_left_to_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes while a case is drawn and the ranks are at the one before."""
    drawn: list[CaseSpec] = []

    def stop(case: CaseSpec) -> CaseSpec:
        drawn.append(case)
        if len({digest(one) for one in drawn}) > 5:
            raise Stopped(15)
        return case

    toy = Toy(name="toy", about="", draws=lambda scope: toy_cases(scope.world_sizes).map(stop))
    monkeypatch.setitem(PROPERTIES, "toy", toy)
    begun: list[str] = []
    bench.begun = lambda case: begun.append(digest(case))
    summary = started(bench, 60, round_examples=30)
    assert summary.exit_code == 143
    assert digests(bench.folder) == list(bench.runs) == begun[:-1]
    assert bench.archive.open == begun[-1]
    assert summary.counts.examples == len(begun) - 1


def test_a_case_is_booked_when_the_next_begins_or_the_run_ends(bench: Bench) -> None:
    one, other = make_case((1,)), make_case((2,))
    with bench.session() as session:
        ledger = Ledger(session, bench.events.append)
        ledger.finish()
        assert ledger.begin(one, "toy")
        assert ledger.counts.examples == 0
        assert ledger.begin(other, "toy")
        assert list(bench.runs) == [digest(one)]
        ledger.finish()
        ledger.finish()
    assert bench.runs == {digest(one): 1, digest(other): 1}
    told = [event.digest for event in bench.events if isinstance(event, CaseDone)]
    assert told == [digest(one), digest(other)]
    assert bench.archive.open is None


def test_a_failing_case_is_on_disk_until_all_its_findings_are_booked(bench: Bench) -> None:
    bench.judge = lambda case, _seen: verdict_of(*[BIG] * is_big(case), *[LONG] * is_long(case))
    case = make_case((200,), steps=3)
    during: set[str | None] = set()
    bench.before = lambda _case: during.add(bench.archive.open)
    with bench.session() as session:
        ledger = Ledger(session, bench.events.append)
        ledger.begin(case, "toy")
        ledger.finish()
    assert len(ledger.found) == 2
    assert len(bench.runs) > 10
    assert during == {digest(case)}
    assert bench.archive.open is None


def test_cases_left_behind_are_tried_first(bench: Bench) -> None:
    bench.judge = two_faults
    bench.archive.left = [make_case((400,))]
    summary = started(bench, 20)
    met = [event.found for event in bench.events if isinstance(event, FindingMet)]
    assert met[0].examples_to_find == 0
    assert summary.counts.examples == 20


def test_a_property_with_few_cases_ends_with_a_word(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = st.sampled_from([make_case((n,)) for n in (1, 2)])
    monkeypatch.setitem(PROPERTIES, "few", Toy(name="few", about="", draws=lambda _scope: few))
    summary = started(bench, 50, properties=("few",))
    assert summary.counts.examples == 2
    assert [event.text for event in bench.events if isinstance(event, Notice)] == [
        "few: found no more different cases to run"
    ]


def test_a_property_that_does_not_exist_names_those_that_do(bench: Bench) -> None:
    with pytest.raises(UsageError, match=r"'tpy'.*parity"):
        started(bench, 5, properties=("tpy",))


def test_world_sizes_reach_the_strategy(bench: Bench) -> None:
    started(bench, 40, world_sizes=(2, 3))
    assert {pool.world_size for pool in bench.pools} == {2, 3}


def test_findings_with_one_key_count_once(bench: Bench) -> None:
    bench.judge = lambda case, _seen: verdict_of(finding("i", note=f"{outs_of(case)}"))
    summary = started(bench, 30)
    assert len(summary.findings) == 1


def test_a_long_run_names_known_findings_that_did_not_show(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsdpfuzz.loop._run.LONG_RUN", 30)
    started(bench, 29)
    assert not [event for event in bench.events if isinstance(event, Notice)]
    started(bench, 30)
    assert [e.text for e in bench.events if isinstance(e, Notice)] == [
        "known finding K-silent did not show; does it still exist?"
    ]

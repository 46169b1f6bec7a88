from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis.database import DirectoryBasedExampleDatabase, InMemoryExampleDatabase

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
from fsdpfuzz.observations import Observation
from fsdpfuzz.spec import CaseSpec, digest
from fsdpfuzz.verdict import Finding, Verdict
from tests.unit.loop.standins import (
    Bench,
    FakeKnown,
    finding,
    make_case,
    outs_of,
    steps_of,
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

    toy = PROPERTIES["toy"]
    drawn = replace(toy, strategy=lambda scope: toy.strategy(scope).map(note))
    monkeypatch.setitem(PROPERTIES, "toy", drawn)
    bench.begun = lambda case: order.append(("begun", digest(case)))
    bench.before = lambda case: order.append(("awaited", digest(case)))
    started(bench, 20, round_examples=6)
    for one, other in pairwise(digests(bench.folder)):
        begun, awaited = order.index(("begun", one)), order.index(("awaited", one))
        assert begun < order.index(("drawn", other)) < awaited < order.index(("begun", other))


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
    assert (outs_of(last[BIG.key]), steps_of(last[BIG.key])) == ((101,), 1)
    assert (outs_of(last[LONG.key]), steps_of(last[LONG.key])) == ((1, 1), 3)
    assert summary.exit_code == 1


def test_one_finding_always_beside_another_still_shrinks(bench: Bench) -> None:
    def judge(case: CaseSpec, observation: Observation) -> Verdict:
        return verdict_of(*((BIG, LONG) if is_long(case) else (BIG,) if is_big(case) else ()))

    bench.judge = judge
    started(bench, 60)
    last = {kept.finding.key: kept.case for kept in bench.archive.kept}
    assert (outs_of(last[LONG.key]), steps_of(last[LONG.key])) == ((1,), 3)
    assert steps_of(last[BIG.key]) in {1, 3}


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


def test_shrinking_runs_no_generated_case_again(bench: Bench) -> None:
    bench.judge = two_faults
    started(bench, 60)
    confirmed = {digest(kept.case) for kept in bench.archive.kept}
    again = {name for name, number in bench.runs.items() if number > 1}
    # Where something was left to trim, what Hypothesis ended with was confirmed, too.
    assert len(again - confirmed) <= len({kept.finding.key for kept in bench.archive.kept})


def test_a_finding_that_only_shrinking_meets_is_reported_and_shrunk(bench: Bench) -> None:
    def judge(case: CaseSpec, observation: Observation) -> Verdict:
        if is_big(case):
            return verdict_of(BIG)
        tried = len(outs_of(case)) == 1 and outs_of(case)[0] > 20 and observed[0]
        return verdict_of(LONG) if tried else verdict_of()

    observed = [False]
    bench.judge = judge

    def emit(event: object) -> None:
        observed[0] = observed[0] or isinstance(event, Shrinking)

    with bench.session() as session:
        summary = run(bench.settings(30), emit, session=session)
    by_key = {found.finding.key: found for found in summary.findings}
    assert by_key[LONG.key].shrunk
    last = {kept.finding.key: outs_of(kept.case) for kept in bench.archive.kept}
    assert last == {BIG.key: (101,), LONG.key: (21,)}


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
    last = bench.archive.kept[-1]
    assert (outs_of(last.case), steps_of(last.case)) == ((101,), 2)


def test_a_flaky_finding_ends_nothing_and_is_not_shrunk(bench: Bench) -> None:
    def judge(case: CaseSpec, observation: Observation) -> Verdict:
        flaky = is_big(case) and bench.runs[digest(case)] in {1, 5, 7}
        return verdict_of(*[BIG] * flaky)

    bench.judge = judge
    summary = started(bench, 60)
    (found,) = summary.findings
    assert summary.counts.examples == 60
    assert found.rate == Rate(failed=3, runs=10)
    assert found.message == "big is off (failed 3 of 10)"
    assert not found.shrunk
    assert not any(isinstance(event, Shrinking) for event in bench.events)
    assert [event for event in bench.events if isinstance(event, FindingDone)]


def test_a_minimal_case_that_turns_out_flaky_says_so(bench: Bench) -> None:
    def judge(case: CaseSpec, observation: Observation) -> Verdict:
        small = outs_of(case) == (101,)
        return verdict_of(*[BIG] * (is_big(case) and (not small or bench.runs[digest(case)] < 3)))

    bench.judge = judge
    (found,) = started(bench, 40).findings
    assert found.rate == Rate(failed=1, runs=10)
    assert found.shrunk


@pytest.mark.parametrize(
    ("limit", "value", "most"),
    [("shrink_tries", 3, 2 * 3), ("shrink_stall", 4, 60), ("shrink_seconds", 0.02, 200)],
)
def test_shrinking_stops_at_its_limit(bench: Bench, limit: str, value: Any, most: int) -> None:
    full = Bench(bench.folder / "full", judge=lambda case, _: verdict_of(*[BIG] * is_big(case)))
    started(full, 40)
    bench.judge = lambda case, _seen: verdict_of(*[BIG] * is_big(case))
    short = Profile(name="toy", max_examples=40, **{limit: value})
    summary = started(bench, 40, profile=short)
    assert 40 < len(bench.runs) <= min(40 + most, len(full.runs) - 1)
    assert summary.findings[0].shrunk


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


def test_the_smallest_case_that_fails_again_is_taken(bench: Bench) -> None:
    """A chance failure on the way down must not become the result."""

    def judge(case: CaseSpec, observation: Observation) -> Verdict:
        by_chance = is_big(case) and steps_of(case) == 1 and bench.runs[digest(case)] == 1
        return verdict_of(*[BIG] * (by_chance or (is_big(case) and steps_of(case) > 1)))

    bench.judge = judge
    (found,) = started(bench, 40).findings
    last = bench.archive.kept[-1]
    assert found.shrunk
    assert found.digest == digest(last.case)
    assert steps_of(last.case) > 1 or found.rate is not None


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
    assert 8 <= summary.counts.examples < 60
    assert bench.events[-1] == RunFinished(summary=summary)
    if during is Shrinking:
        assert summary.findings[0].shrunk, "the smallest case so far is taken"


def test_cases_left_behind_are_tried_first(bench: Bench) -> None:
    bench.judge = two_faults
    bench.archive.left = [make_case((400,))]
    summary = started(bench, 20)
    met = [event.found for event in bench.events if isinstance(event, FindingMet)]
    assert met[0].examples_to_find == 0
    assert summary.counts.examples == 20


def test_the_database_brings_back_a_minimal_case_at_once(bench: Bench) -> None:
    bench.judge = two_faults
    started(bench, 60)
    again = Bench(bench.folder, judge=two_faults)
    summary = started(again, 5, seed=99)
    assert {found.finding.key for found in summary.findings} == {BIG.key, LONG.key}
    assert {found.examples_to_find for found in summary.findings} == {0}
    assert summary.counts.examples == 5


def test_any_database_can_be_used_or_none(bench: Bench) -> None:
    database = InMemoryExampleDatabase()
    bench.judge = two_faults
    started(bench, 60, database=database)
    assert database.data
    assert not (bench.folder / "examples").exists()
    started(bench, 60, database=None)
    shared = DirectoryBasedExampleDatabase(bench.folder / "shared")
    started(bench, 60, database=shared)
    assert (bench.folder / "shared").is_dir()


def test_a_property_with_few_cases_ends_with_a_word(bench: Bench) -> None:
    from hypothesis import strategies as st

    from fsdpfuzz.loop import PROPERTIES, Property

    few = Property(
        name="few",
        about="",
        strategy=lambda _scope: st.sampled_from([make_case((n,)) for n in (1, 2)]),
    )
    PROPERTIES["few"] = few
    try:
        summary = started(bench, 50, properties=("few",))
    finally:
        del PROPERTIES["few"]
    assert summary.counts.examples == 2
    assert any("no more than 2" in e.text for e in bench.events if isinstance(e, Notice))


def test_a_property_that_does_not_exist_names_those_that_do(bench: Bench) -> None:
    with pytest.raises(UsageError, match=r"'tpy'.*parity"):
        started(bench, 5, properties=("tpy",))


def test_world_sizes_reach_the_strategy(bench: Bench) -> None:
    started(bench, 40, world_sizes=(2, 3))
    assert {pool.world_size for pool in bench.pools} == {2, 3}


def test_findings_with_one_key_count_once(bench: Bench) -> None:
    bench.judge = lambda case, _seen: verdict_of(
        Finding(invariant="i", symptom="mismatch", where="w", message=f"{outs_of(case)}")
    )
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

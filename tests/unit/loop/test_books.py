"""The events of several jobs, told as those of one run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from fsdpfuzz.case import digest, features
from fsdpfuzz.loop import (
    Also,
    CaseDone,
    Counts,
    Event,
    FindingDone,
    FindingMet,
    Found,
    Notice,
    Rate,
    RunFinished,
    RunSettings,
    RunStarted,
    Script,
    Scripting,
    SessionSettings,
    Shrinking,
    Summary,
    jobs_of,
)
from fsdpfuzz.loop._books import Books
from fsdpfuzz.loop._messages import Lines, event_of, line_of, messages, settings, told
from fsdpfuzz.verdict import Status
from tests.unit.loop.standins import finding, make_case

CASE = make_case((3,))
DONE = CaseDone(
    index=1,
    property_name="toy",
    digest=digest(CASE),
    features=features(CASE),
    status="passed",
    seconds=0.1,
    restarts=0,
)
STARTED = RunStarted(
    torch="9.9.9",
    backend="gloo",
    world_sizes=(2,),
    profile="dev",
    seed=7,
    properties=("toy",),
    max_examples=10,
    output=Path("out"),
)


def a_found(name: str = "big", **fields: Any) -> Found:
    given: dict[str, Any] = {"examples_to_find": 1, "seconds": 0.5, **fields}
    return Found(
        finding=finding(name), property_name="toy", case=Path(f"{name}.json"), digest="0", **given
    )


def a_summary(*findings: Found, **fields: Any) -> Summary:
    given: dict[str, Any] = {"counts": Counts(examples=3, passed=3, skipped=2), **fields}
    return Summary(started=STARTED, seconds=2.0, pool_restarts=1, findings=findings, **given)


def keys(books: Books) -> dict[str, tuple[str, ...]]:
    return {found.finding.key: found.also for found in books.found}


def test_cases_are_counted_over_all_jobs() -> None:
    books = Books(2)
    verdicts: tuple[tuple[int, int, Status], ...] = (
        (0, 1, "passed"),
        (1, 2, "vacuous"),
        (0, 3, "finding"),
    )
    told = [
        event
        for job, restarts, status in verdicts
        for event in books.take(job, replace(DONE, restarts=restarts, status=status), 1.0)
    ]
    assert [(e.index, e.restarts) for e in told if isinstance(e, CaseDone)] == [
        (1, 1),
        (2, 3),
        (3, 5),
    ]
    assert books.counts == Counts(examples=3, passed=1, vacuous=1, failed=1)
    books.take(1, RunFinished(summary=a_summary()), 2.0)
    assert books.counts == Counts(examples=5, passed=4, failed=1, skipped=2)
    assert (books.restarts, books.examples_of(0), books.examples_of(1)) == (4, 2, 3)


def test_a_finding_is_told_of_when_the_first_job_meets_it() -> None:
    books = Books(2)
    books.take(0, DONE, 1.0)
    books.take(1, DONE, 2.0)
    (met,) = books.take(1, FindingMet(found=a_found()), 3.0)
    assert isinstance(met, FindingMet)
    assert (met.found.examples_to_find, met.found.seconds) == (2, 3.0)
    assert books.take(0, FindingMet(found=a_found()), 4.0) == ()
    (done,) = books.take(1, FindingDone(found=a_found(shrunk=True)), 9.0)
    assert isinstance(done, FindingDone)
    assert (done.found.examples_to_find, done.found.seconds, done.found.shrunk) == (2, 3.0, True)


def test_a_key_that_another_job_met_goes_to_its_cause() -> None:
    books, after = Books(2), finding("after").key
    books.take(0, FindingMet(found=a_found("big")), 1.0)
    books.take(1, FindingMet(found=a_found("after")), 2.0)
    assert keys(books) == {finding("big").key: (), after: ()}
    (also,) = books.take(1, Also(found=a_found("big", also=(after,)), key=after), 3.0)
    assert isinstance(also, Also)
    assert keys(books) == {finding("big").key: (after,)}
    script = Script(path=None, confirmed=True, note="")
    books.take(0, FindingDone(found=a_found("big", script=script, shrunk=True)), 4.0)
    books.take(1, Also(found=a_found("big", also=("more",)), key="more"), 5.0)
    (found,) = books.found
    assert (found.also, found.script) == ((after, "more"), script), "nothing is forgotten"


def test_a_reduced_finding_takes_the_place_of_what_was_met() -> None:
    books = Books(1)
    for name in ("one", "big", "two"):
        books.take(0, FindingMet(found=a_found(name)), 1.0)
    books.take(0, FindingDone(found=a_found("less", also=(finding("big").key,))), 2.0)
    assert [found.finding.invariant for found in books.found] == ["one", "less", "two"]


def test_the_same_key_may_be_known_and_new() -> None:
    books = Books(2)
    books.take(0, FindingMet(found=a_found(known="K1")), 1.0)
    books.take(1, FindingMet(found=a_found()), 1.0)
    books.take(1, FindingMet(found=a_found(known="K1")), 1.0)
    books.take(1, FindingDone(found=a_found(shrunk=True)), 1.0)
    assert [found.known for found in books.found] == ["K1", None]


def test_a_job_that_was_ended_says_the_last_of_it_in_its_summary() -> None:
    books = Books(2)
    books.take(0, FindingMet(found=a_found("big")), 1.0)
    books.take(1, FindingMet(found=a_found("after")), 1.0)
    last = a_found("less", also=(finding("big").key,), shrunk=True)
    books.take(0, RunFinished(summary=a_summary(last, a_found("new"))), 2.0)
    assert list(keys(books)) == [finding(name).key for name in ("less", "after", "new")]


def test_what_showed_once_is_no_finding_where_another_job_confirmed_it() -> None:
    books, rate = Books(2), Rate(failed=1, runs=10)
    once = (a_found("big", rate=rate), a_found("odd", rate=rate))
    books.take(0, RunFinished(summary=a_summary(unconfirmed=once)), 1.0)
    books.take(1, FindingMet(found=a_found("big")), 2.0)
    denied = Script(path=None, confirmed=False, contradicts=True, note="")
    books.take(1, FindingDone(found=a_found("no", script=denied)), 3.0)
    assert list(keys(books)) == [finding("big").key]
    assert [found.finding.invariant for found in books.unconfirmed] == ["no", "odd"]


def test_harness_errors_are_counted_before_a_job_ends_and_once() -> None:
    books = Books(2)
    (notice,) = books.take(0, Notice(text="harness error: x", harness_error=True), 1.0)
    assert notice == Notice(text="job 1: harness error: x", harness_error=True)
    assert list(books.harness) == ["harness error: x"]
    last = a_summary(harness=("harness error: x",), harness_errors=1)
    books.take(0, RunFinished(summary=last), 2.0)
    assert list(books.harness) == ["harness error: x"]
    books.cut_short(1, "it died")
    assert list(books.harness) == ["harness error: x", "it died"]


def test_a_known_finding_is_silent_where_no_job_met_it() -> None:
    assert Books(3).silent_known == ()
    books = Books(3)
    books.take(0, RunFinished(summary=a_summary(silent_known=("K1", "K2"))), 1.0)
    books.take(1, RunFinished(summary=a_summary(silent_known=("K2", "K3"))), 1.0)
    assert books.silent_known == ("K2",)


EVENTS: tuple[Event, ...] = (
    STARTED,
    replace(DONE, known=("K1",)),
    FindingMet(found=a_found(rate=Rate(failed=1, runs=10))),
    Also(found=a_found(), key="k"),
    Shrinking(key="k", tries=3, bytes=200, restarts=1),
    Scripting(key="k"),
    FindingDone(found=a_found(script=Script(path=Path("a.py"), confirmed=True, note=""))),
    Notice(text="text", harness_error=True),
    RunFinished(summary=a_summary(a_found(also=("a", "b")))),
)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_comes_over_as_it_is(event: Event) -> None:
    (line,) = Lines().cut(line_of(told(event)))
    message = messages.decode(line)
    assert type(message).__name__ == "Told"
    assert event_of(message) == event  # type: ignore[arg-type]


def test_every_event_was_tried() -> None:
    assert {type(event) for event in EVENTS} == set(get_args(Event))


def test_what_is_no_utf_8_comes_over_in_other_words() -> None:
    odd = Notice(text=b"\xff".decode("utf-8", "surrogateescape"))
    (line,) = Lines().cut(line_of(told(odd)))
    assert event_of(messages.decode(line)) == Notice(text="\\udcff")  # type: ignore[arg-type]


def test_lines_are_cut_wherever_they_come_apart() -> None:
    lines = Lines()
    assert [list(lines.cut(part)) for part in (b"a", b"b\nc", b"", b"\n\nd")] == [
        [],
        [b"ab"],
        [],
        [b"c", b""],
    ]


def test_jobs_share_the_examples_and_have_seeds_and_folders_of_their_own() -> None:
    def on(backend: Any) -> RunSettings:
        session = SessionSettings(backend=backend, kept=Path("out"), seed=7)
        return RunSettings(session=session, properties=("toy",), max_examples=11)

    jobs = jobs_of([(on("gloo"), 1), (on("nccl"), 2)])
    assert [job.session.backend for job in jobs] == ["gloo", "nccl", "nccl"]
    assert [job.max_examples for job in jobs] == [4, 4, 3]
    assert len({job.session.seed for job in jobs}) == 3
    assert {job.session.kept for job in jobs} == {Path("out")}
    assert [str(job.notes) for job in jobs] == ["out/jobs/1", "out/jobs/2", "out/jobs/3"]
    assert [job.place for job in jobs] == [(0, 1), (0, 2), (1, 2)]
    assert jobs == jobs_of([(on("gloo"), 1), (on("nccl"), 2)])
    assert {job.place[1] for job in jobs_of([(on("gloo"), 20)])} == {11}
    assert [job.max_examples for job in jobs_of([(on("gloo"), 20)])] == [1] * 11
    (line,) = Lines().cut(line_of(jobs[0]))
    assert settings.decode(line) == jobs[0]

"""What is the fuzzer's or the machine's fault is told from findings, tried again and kept."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fsdpfuzz.case import (
    CaseSpec,
    Dense,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Repeat,
    Sequential,
    StateDict,
    Step,
    digest,
)
from fsdpfuzz.cli._table import print_summary
from fsdpfuzz.corpus import read_entry
from fsdpfuzz.errors import CaseError
from fsdpfuzz.loop import Notice, run, summary_document
from fsdpfuzz.loop._archive import FileArchive
from fsdpfuzz.loop._harness import fault_of, in_words, refusal
from fsdpfuzz.observations import Death, Hang, Observation, Raised, RankReport
from fsdpfuzz.properties._documents import run_seed
from fsdpfuzz.seeds import Seed
from fsdpfuzz.show import RunRecord, as_part, closing_lines, joined
from tests.unit.loop.standins import Bench, finding, make_case, verdict_of

CASE = make_case((7,))
BIG = finding("big")


def raised(stage: str, *, ours: bool = False, text: str = "no") -> Raised:
    return Raised(
        type="RuntimeError",
        message=text,
        stage=stage,
        frame="torch/x.py:f",
        documented=False,
        ours=ours,
        traceback="Traceback: injected",
    )


def seen(
    *errors: Raised | None, deaths: tuple[Death, ...] = (), hang: Hang | None = None
) -> Observation:
    return Observation(
        digest="d",
        world_size=2,
        backend="gloo",
        torch="9.9.9",
        reports=tuple(
            RankReport(rank=rank, digest="d", raised=error) for rank, error in enumerate(errors)
        ),
        deaths=deaths,
        hang=hang,
    )


def contradicted(*errors: Raised | None) -> Observation:
    """What ranks saw whose reference was no reference."""
    given = seen(*errors)
    told = (
        msgspec.structs.replace(report, reference_apart="trainings disagree")
        for report in given.reports
        if report is not None
    )
    return msgspec.structs.replace(given, reports=tuple(told))


PEER = "Connection closed by peer [127.0.0.1]:1"


@pytest.mark.parametrize(
    ("observation", "fault"),
    [
        (seen(None, None), ""),
        (seen(raised("case:forward[0]"), None), ""),
        (contradicted(None, None), "trainings disagree [reference, rank 0]"),
        # No reference is needed to see that.
        (contradicted(raised("case:forward[0]"), None), ""),
        (seen(raised("half_batches:backward[1]"), None), ""),
        (seen(raised("case:wrap"), raised("reference-float32:build", text=PEER)), ""),
        (
            seen(None, raised("reference-float64:forward[0]")),
            "reference-float64:forward[0], rank 1",
        ),
        (seen(raised("reference-float32:backward[1]"), None), "reference-float32"),
        (seen(raised("broadcast"), None), "[broadcast, rank 0]"),
        (seen(raised("report"), None), "[report, rank 0]"),
        (seen(raised("case:forward[0]", ours=True), None), "[case:forward[0], rank 0]"),
        (seen(raised("case:forward[0]"), raised("case:forward[0]", ours=True)), "rank 1"),
        (seen(deaths=(Death(rank=1, exitcode=-6, stage="case:backward[1]"),)), ""),
        (seen(deaths=(Death(rank=1, exitcode=-6, stage="broadcast"),)), "ended with -6"),
        (
            seen(raised("case:wrap"), deaths=(Death(rank=1, exitcode=-6, stage="broadcast"),)),
            "",
        ),
        (seen(hang=Hang(ranks=(0, 1), deadline=3.0, stages=("case:wrap", "case:wrap"))), ""),
        (seen(hang=Hang(ranks=(1,), deadline=3.0, stages=("idle", "case:wrap"))), ""),
        (
            seen(hang=Hang(ranks=(0, 1), deadline=3.0, stages=("broadcast", "broadcast"))),
            "no answer within 3.0 s [broadcast]",
        ),
        (
            seen(
                raised("case:wrap"),
                hang=Hang(
                    ranks=(1,), deadline=3.0, stages=("idle", "broadcast"), after_failure=True
                ),
            ),
            "",
        ),
    ],
)
def test_what_says_nothing_of_fsdp_is_a_harness_error(observation: Observation, fault: str) -> None:
    assert bool(fault_of(observation)) is bool(fault)
    assert fault in fault_of(observation)


def unsound() -> CaseSpec:
    return msgspec.structs.replace(CASE, frozen=("nowhere",))


def test_a_case_that_check_refuses_is_not_sent(bench: Bench) -> None:
    assert refusal(CASE) == ""
    assert "nowhere" in refusal(unsound())
    bench.judge = lambda _case, _seen: verdict_of(BIG)
    with bench.session() as session:
        session.begin(unsound())
        examined = session.examine(unsound())
        assert not bench.log
        assert (examined.verdict.status, examined.news) == ("harness error", ())
        (error,) = session.harness_errors
    assert "nowhere" in error.reason
    assert bench.archive.harness_errors[0][0] == unsound()
    assert bench.archive.open is None


def test_the_draw_that_was_booked_as_a_finding_of_fsdp(bench: Bench) -> None:
    """A unit owns parameters of a first child that is also called on its own."""
    first = Linear(out=1, bias=False)
    drawn = msgspec.structs.replace(
        CASE,
        model=Repeat(body=Sequential(children=(first, first)), no_grad="first_child"),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="body"))),
        inputs=Dense(width=1),
        program=(StateDict(),),
    )
    with bench.session() as session:
        assert session.examine(drawn).verdict.status == "harness error"
    assert not bench.log
    assert "make that child a unit" in bench.archive.harness_errors[0][1]


def test_a_harness_error_that_stays_is_tried_on_fresh_ranks_and_is_no_finding(bench: Bench) -> None:
    bench.judge = lambda _case, _seen: verdict_of(BIG)
    bench.change = lambda _: seen(raised("reference-float64:forward[0]"), None)
    with bench.session() as session:
        examined = session.examine(CASE)
        assert session.examine(CASE).verdict == examined.verdict
    assert (examined.verdict.status, examined.verdict.findings) == ("harness error", ())
    name = digest(CASE)
    assert bench.log[:5] == [
        (name, False),
        ("closed", False),
        (name, True),
        ("closed", False),
        (name, True),
    ]
    ((case, reason, words),) = bench.archive.harness_errors
    assert case == CASE
    assert "reference-float64" in reason
    assert words.count("Traceback: injected") == 3
    assert "9.9.9" in words


def test_what_comes_of_fresh_ranks_stands(bench: Bench) -> None:
    bench.judge = lambda _case, _seen: verdict_of(BIG)
    bad = iter([True])
    bench.change = lambda good: seen(raised("broadcast"), None) if next(bad, False) else good
    with bench.session() as session:
        examined = session.examine(CASE)
        (error,) = session.harness_errors
    assert examined.news == (BIG,)
    assert error.gone
    assert str(error).startswith("harness error, gone on fresh ranks: RuntimeError: no [broadcast")


def test_an_error_of_the_judge_is_a_harness_error(bench: Bench) -> None:
    def judge(_case: CaseSpec, _seen: Observation) -> None:
        raise KeyError("injected")

    bench.judge = judge  # type: ignore[assignment]
    with bench.session() as session:
        assert session.examine(CASE).verdict.status == "harness error"
    ((_, reason, words),) = bench.archive.harness_errors
    assert reason == "KeyError: 'injected' [judging]"
    assert "in judge" in words


def test_a_seed_that_ends_in_one_fails_its_test(bench: Bench) -> None:
    bench.change = lambda _: seen(raised("broadcast"), None)
    seed = Seed(document="000", test="test_it", params="", case=CASE)
    failed = pytest.raises(pytest.fail.Exception, match=r"000: test_it.* is harness error: ")
    with bench.session() as session, failed:
        run_seed(seed, session, "parity")


def test_a_run_counts_them_and_shows_each_in_a_line(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.change = lambda _: seen(raised("broadcast", text="two\nlines"), None)
    summary = run(bench.settings(max_examples=3), bench.events.append, session=bench.session())
    assert summary.harness_errors == 3
    assert (summary.findings, summary.exit_code, summary.counts.examples) == ((), 0, 3)
    counts = summary.counts
    assert counts.passed + counts.rejected + counts.vacuous + counts.failed == 0
    assert summary_document(summary)["harness_errors"] == 3
    print_summary(summary, {}, bench.folder / "report.html")
    assert len(summary.harness) == capsys.readouterr().out.count("harness error, ") == 3
    part = as_part(summary, RunRecord(harness=summary.harness))
    assert sum("harness error, " in line for line in closing_lines(joined([part]), {})) == 3
    lines = [event.text for event in bench.events if isinstance(event, Notice)]
    assert len([line for line in lines if line.startswith("harness error")]) == 3
    assert all("\n" not in line for line in lines)


def test_an_unconfirmed_finding_is_kept_counted_and_listed_apart(bench: Bench) -> None:
    first = iter([True])
    bench.judge = lambda _case, _seen: verdict_of(*[BIG] * next(first, False))
    summary = run(bench.settings(max_examples=3), bench.events.append, session=bench.session())
    assert (summary.findings, summary.exit_code) == ((), 0)
    (found,) = summary.unconfirmed
    assert (found.finding, str(found.rate)) == (BIG, "failed 1 of 10")
    (kept,) = bench.archive.kept
    assert kept.unconfirmed
    document = summary_document(summary)
    assert document["findings"] == []
    assert [item["key"] for item in document["unconfirmed"]] == [BIG.key]
    part = as_part(summary, RunRecord())
    assert f"  {BIG.key}" in closing_lines(joined([part]), {})


def test_everything_that_helps_to_mend_it_is_on_disk(tmp_path: Path) -> None:
    hang = Hang(ranks=(1,), deadline=3.0, stages=("idle", "broadcast"), stacks=("", "a stack"))
    observation = seen(
        raised("broadcast"), deaths=(Death(rank=1, exitcode=9, output="last words"),), hang=hang
    )
    words = in_words("why", [observation], {"backend": "gloo"}, "Traceback of the judge")
    path = FileArchive(tmp_path).keep_harness_error(CASE, "why", words)
    assert path == tmp_path / "harness" / f"{digest(CASE)}.json"
    assert read_entry(path).case == CASE
    assert read_entry(path).origin == "harness error: why"
    told = path.with_suffix(".txt").read_text()
    for text in ("why", "gloo", "Traceback: injected", "last words", "a stack", "of the judge"):
        assert text in told


def test_a_case_that_check_refuses_is_kept_all_the_same(tmp_path: Path) -> None:
    bad = msgspec.structs.replace(CASE, program=(Step(), Forward()), frozen=("nowhere",))
    path = FileArchive(tmp_path).keep_harness_error(bad, "refused", "words")
    with pytest.raises(CaseError, match="nowhere"):
        read_entry(path)

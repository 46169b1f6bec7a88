"""What is gathered of a run."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from fsdpfuzz.loop import FindingMet, RunFinished, RunStarted
from fsdpfuzz.show import Recorder, RunRecord, Sample, render
from fsdpfuzz.show._charts import BINS, charts, duration
from fsdpfuzz.show._diff import difference
from fsdpfuzz.show._record import MAX_SAMPLES, Samples
from tests.unit.show.samples import (
    KNOWN,
    REPRO,
    SILENT,
    SMALL,
    Clock,
    a_record,
    a_run,
    events,
    findings,
)


def test_a_run(tmp_path: Path) -> None:
    record = a_record(tmp_path, 240)
    assert (record.torch, record.backend, record.world_sizes) == ("2.13.0", "gloo", (2, 3))
    assert (record.examples, record.passed, record.rejected) == (240, 213, 21)
    assert record.pool_restarts == 24
    assert record.exit_code == 1
    assert [finding.known for finding in record.findings] == [KNOWN, None, None]
    assert record.known_met[0].id == KNOWN
    assert record.known_met[0].cases == 6
    assert [entry.id for entry in record.known_silent] == [SILENT]
    assert record.notices == (f"known defect {SILENT} did not show; does it still exist?",)
    assert record.pairs.cases == 240
    last = record.samples[-1]
    assert (last.examples, last.new, last.known, last.restarts) == (240, 2, 1, 24)
    assert last.seconds == pytest.approx(record.seconds)


def test_a_finding_comes_with_case_script_and_what_came_of_it(tmp_path: Path) -> None:
    _, steady, flaky = a_record(tmp_path).findings
    assert steady.case == SMALL
    assert steady.repro == REPRO
    assert steady.confirmation == "confirmed"
    assert steady.confirmation_note.startswith("rank 0: reproduced")
    assert len(steady.ablation) == 2
    assert (steady.shrunk, steady.shrink_steps, steady.examples_to_find) == (True, 14, 80)
    assert (flaky.rate, flaky.confirmation, flaky.repro) == ("failed 3 of 10", "unknown", "")


def test_reasons_come_from_the_known_defects(tmp_path: Path) -> None:
    folder = Path(__file__).parents[3] / "corpus" / "known"
    record = a_run(tmp_path, 40, folder).record()
    told = {entry.id: entry.reason for entry in (*record.known_met, *record.known_silent)}
    assert told == {
        name: json.loads((folder / f"{name}.json").read_text())["reason"]
        for name in (KNOWN, SILENT)
    }


def test_a_file_that_is_gone_is_said(tmp_path: Path) -> None:
    recorder = a_run(tmp_path)
    for path in (*tmp_path.glob("failures/*"), *tmp_path.glob("repros/*")):
        path.unlink()
    _, steady, _ = recorder.record().findings
    assert steady.case is None
    assert "no such file" in steady.unreadable
    assert steady.repro == ""
    assert steady.repro_path


def test_a_run_can_be_reported_while_it_goes_on(tmp_path: Path) -> None:
    clock = Clock()
    recorder = Recorder(clock=clock)
    assert recorder.record().examples == 0
    started, *rest = events(tmp_path, 100, clock)
    assert isinstance(started, RunStarted)
    recorder(started)
    for event in rest[:60]:
        recorder(event)
    recorder(FindingMet(found=findings(tmp_path)[0]))
    record = recorder.record()
    assert record.exit_code is None
    assert record.seed == started.seed
    assert record.examples == sum(type(event).__name__ == "CaseDone" for event in rest[:60])
    assert record.findings


def test_json_and_back(tmp_path: Path) -> None:
    record = a_record(tmp_path, 60)
    clean = msgspec.structs.replace(record, findings=record.findings[:2])
    assert msgspec.json.decode(msgspec.json.encode(clean), type=RunRecord) == clean


def test_samples_are_few_in_order_and_end_with_the_last() -> None:
    samples = Samples()
    for i in range(50_000):
        samples.add(Sample(seconds=i * 0.1, examples=i))
        assert len(samples.all) <= MAX_SAMPLES
    kept = [sample.seconds for sample in samples.all]
    assert kept == sorted(kept)
    assert samples.all[0].examples == 0
    assert samples.all[-1].examples == 49_999
    gaps = [b - a for a, b in pairwise(kept)]
    assert max(gaps) <= 4 * 5_000 / MAX_SAMPLES
    assert len(kept) >= MAX_SAMPLES / 4


def test_charts(tmp_path: Path) -> None:
    rate, found, restarts = charts(a_record(tmp_path, 300))
    assert rate.lines[0].path.count("H") == BINS
    assert [line.last for line in found.lines] == ["2 new", "1 known"]
    # Met after 7.20 s and 15.96 s of 24.96 s.
    assert found.lines[0].path == "M0 100H28.85V50.0H63.94V0.0H100"
    assert restarts.top == "25"
    assert restarts.ticks[0] == "0 s"
    assert charts(RunRecord()) == ()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (3.21, "3.2 s"), (59.4, "59 s"), (61, "1 min 01 s"), (7_260, "2 h 01 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_numbers_differ_as_a_whole() -> None:
    found = difference("1.25", "0.625")
    assert [(p.text, p.changed) for p in found.observed] == [("1.25", True)]
    assert found.note == "off by +0.625, 2 times what it should be"
    assert difference("nan", "1.0").note == "not finite"
    assert difference("1.0", "0").note == "off by +1"


def test_texts_differ_by_words() -> None:
    found = difference("rank 0: nothing", "rank 0: the same")
    assert [(p.text, p.changed) for p in found.observed] == [("rank 0: ", False), ("nothing", True)]
    assert [(p.text, p.changed) for p in found.expected] == [
        ("rank 0: ", False),
        ("the same", True),
    ]
    assert difference("same", "same").observed[0].changed is False
    assert difference("", "x").observed == ()


def test_what_is_unconfirmed_is_no_finding(tmp_path: Path) -> None:
    recorder = a_run(tmp_path, 40)
    *_, last = events(tmp_path, 40, Clock())
    assert isinstance(last, RunFinished)
    *others, doubtful = last.summary.findings
    assert doubtful.known is None
    summary = replace(
        last.summary,
        findings=tuple(others),
        unconfirmed=(doubtful,),
        harness_errors=2,
        harness=("harness error, gone: <one>", "harness error, the same: two"),
    )
    recorder(RunFinished(summary=summary))
    record = recorder.record()
    assert doubtful.finding.key not in [finding.key for finding in record.findings]
    assert [finding.key for finding in record.unconfirmed] == [doubtful.finding.key]
    assert record.harness_errors == 2
    page = render(record)
    assert "<h3>Unconfirmed</h3>" in page
    assert "2 harness errors" in page
    assert "<li>harness error, gone: &lt;one&gt;</li>" in page
    assert page.count("harness error, the same: two") == 1

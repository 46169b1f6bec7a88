"""One record of what several processes checked."""

from __future__ import annotations

import json
from pathlib import Path

from fsdpfuzz.case import features
from fsdpfuzz.loop import RunFinished, write_json
from fsdpfuzz.show import RunRecord, as_part, joined
from fsdpfuzz.show._merge import merged
from fsdpfuzz.show._pairs import PairCounts
from tests.unit.loop.standins import make_case
from tests.unit.show.samples import KNOWN, Clock, a_record, events


def test_counts_add_up_and_a_finding_is_told_once(tmp_path: Path) -> None:
    first, second = a_record(tmp_path / "a", 240), a_record(tmp_path / "b", 120)
    both = merged([first, second])
    assert both.examples == 360
    assert both.passed == first.passed + second.passed
    assert [finding.key for finding in both.findings] == [f.key for f in first.findings]
    assert {entry.id: entry.cases for entry in both.known_met}[KNOWN] == sum(
        entry.cases for record in (first, second) for entry in record.known_met
    )
    assert merged([first]) is first


def test_pairs_are_those_of_all_cases_together() -> None:
    cases = [make_case((n, 2), world_size=w) for n in (1, 300) for w in (2, 3)]
    cases += [make_case((7,), steps=3)]

    def record(part: list[int]) -> RunRecord:
        counts = PairCounts()
        for i in part:
            counts.add(features(cases[i]))
        return RunRecord(pairs=counts.table())

    whole, both = record([0, 1, 2, 3, 4]), merged([record([3, 4, 1]), record([0, 2])])
    assert both.pairs == whole.pairs


def test_a_record_survives_the_way_between_processes(tmp_path: Path) -> None:
    record = a_record(tmp_path, 60)
    *_, last = events(tmp_path, 60, Clock())
    assert isinstance(last, RunFinished)
    assert any("\udc80" in finding.message for finding in record.findings)
    assert joined([as_part(last.summary, record)]).record == record


def test_a_result_with_any_text_can_be_written(tmp_path: Path) -> None:
    write_json(tmp_path / "result.json", {"message": ["a\udc80b"], "examples": 1})
    assert json.loads((tmp_path / "result.json").read_text())["message"] == ["a\\udc80b"]

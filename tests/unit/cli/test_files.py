"""When a run's report is written, and what of the controller's time that takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.cli import _files
from fsdpfuzz.cli._files import SECONDS, SHARE, Files
from fsdpfuzz.loop import Event, FindingDone, RunFinished
from fsdpfuzz.show import Recorder
from tests.unit.show.samples import Clock, events


class _Disk(Files):
    """Files whose every report takes some seconds of the clock."""

    def __init__(self, folder: Path, recorder: Recorder, clock: Clock, takes: float) -> None:
        super().__init__(folder, recorder, clock=clock)
        self.written: list[float] = []
        self.spent = 0.0
        self._told, self._takes = clock, takes

    def _write_report(self) -> None:
        self.written.append(self._told.now)
        self._told.now += self._takes
        self.spent += self._takes
        super()._write_report()


def _written(folder: Path, takes: float) -> tuple[_Disk, list[tuple[float, Event]]]:
    clock = Clock()
    recorder = Recorder(clock=clock)
    files = _Disk(folder, recorder, clock, takes)
    told: list[tuple[float, Event]] = []
    for event in events(folder, 300, clock):
        told.append((clock.now, event))
        recorder(event)
        files(event)
    return files, told


def test_reports_take_a_small_part_of_the_time_even_where_findings_come_in_rows(
    tmp_path: Path,
) -> None:
    files, told = _written(tmp_path, 0.4)
    whole = told[-1][0] - told[0][0]
    # But for the first and the last, which every run has.
    assert 2 < len(files.written) <= whole / (SHARE * 0.4) + 2
    assert files.written[-1] == told[-1][0]
    assert isinstance(told[-1][1], RunFinished)


def test_a_finding_is_in_the_report_as_soon_as_there_is_time_for_it(tmp_path: Path) -> None:
    files, told = _written(tmp_path, 0.001)
    done = [when for when, event in told if isinstance(event, FindingDone)]
    assert done
    for when in done:
        assert any(when <= written <= when + SHARE * 0.002 for written in files.written)


def test_without_findings_it_is_as_old_as_it_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_files, "SECONDS", 1.0)
    often, _ = _written(tmp_path, 0.001)
    monkeypatch.setattr(_files, "SECONDS", 5 * SECONDS)
    seldom, _ = _written(tmp_path, 0.001)
    assert len(seldom.written) < len(often.written)
    gaps = [b - a for a, b in zip(often.written, often.written[1:], strict=False)]
    assert max(gaps) < 1.5

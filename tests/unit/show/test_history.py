"""The earlier runs of a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsdpfuzz.show._history import MAX_RUNS, past_runs


def result(folder: Path, name: str, **fields: object) -> Path:
    path = folder / name / "result.json"
    path.parent.mkdir(parents=True)
    document = {
        "schema": 1,
        "torch": "2.13.0",
        "examples": 150,
        "examples_per_second": 9.5,
        "seconds": 15.8,
        "seed": 7,
        "profile": "dev",
        "findings": [{"key": "a", "known": None}, {"key": "b", "known": "K1"}],
        **fields,
    }
    path.write_text(json.dumps(document))
    return path


def test_the_newest_comes_first_and_the_own_run_not_at_all(tmp_path: Path) -> None:
    for name in ("2026-11-20-101112-7", "2026-11-21-101112-9", "2026-11-21-235959-own"):
        result(tmp_path, name)
    (tmp_path / "latest").symlink_to("2026-11-21-235959-own")
    newest, oldest = past_runs(tmp_path / "2026-11-21-235959-own")
    assert (newest.name, newest.date) == ("2026-11-21-101112-9", "2026-11-21 10:11 UTC")
    assert (oldest.examples, oldest.examples_per_second) == (150, 9.5)
    assert (oldest.new, oldest.known) == (1, 1)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"torch": 3}', "[" * 100_000])
def test_what_cannot_be_read_is_left_out(tmp_path: Path, text: str) -> None:
    result(tmp_path, "2026-11-20-101112-7").write_text(text)
    assert past_runs(tmp_path / "own") == ()


def test_there_is_an_end_to_it(tmp_path: Path) -> None:
    for i in range(MAX_RUNS + 5):
        result(tmp_path, f"2026-11-20-1011{i:02}-7")
    runs = past_runs(tmp_path / "own")
    assert len(runs) == MAX_RUNS
    assert runs[0].name == f"2026-11-20-1011{MAX_RUNS + 4:02}-7"


def test_a_folder_that_is_not_there_has_no_runs(tmp_path: Path) -> None:
    assert past_runs(tmp_path / "no" / "own") == ()

"""The matrix of known defects over releases, and what an environment is made from."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks import versions
from benchmarks.versions import RELEASES, Row, matrix

ROWS: dict[str, Row] = {
    "2.15.0": {"known": {"a": "otherwise", "b": "shows"}},
    "2.9.1": {
        "known": {"a": "shows", "b": "passes", "c": "not run"},
        "examples": {"examples": 300, "passed": 278},
        "examples_known": ["a"],
        "examples_new": ["no_crash/crash/fsdp2"],
        "documents": {"passed": 103, "skipped": 24},
        "documents_new": [],
    },
}


def test_the_matrix_has_a_column_for_each_release_in_order() -> None:
    lines = matrix(ROWS).splitlines()
    assert "| known defect | 2.9.1 | 2.15.0 |" in lines
    assert [line for line in lines if line.startswith(("| a", "| b", "| c"))] == [
        "| a | Y | X |",
        "| b | - | Y |",
        "| c |  |  |",
    ]
    besides = "| 2.9.1 | 300 | 278 | 1 | `no_crash/crash/fsdp2` | 103 passed, 24 skipped |"
    assert besides in lines
    assert "| 2.15.0 |  |  |  |  |  |" in lines


def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    ran: list[list[str]] = []

    def run(command: list[str], check: bool) -> None:
        assert check
        ran.append(command[1:] if "venv" in command else command)

    monkeypatch.setattr(subprocess, "run", run)
    return ran


def test_an_environment_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = commands(monkeypatch)
    python = versions.environment(tmp_path, "2.9.1")
    assert python == tmp_path / "2.9.1" / "bin" / "python"
    assert ran == [
        ["-m", "venv", str(tmp_path / "2.9.1")],
        [str(python), "-m", "pip", "install", "--quiet", "torch==2.9.1", "numpy"],
    ]
    python.parent.mkdir(parents=True)
    python.touch()
    assert versions.environment(tmp_path, "2.9.1") == python
    assert len(ran) == 2


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_none_is_made_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = commands(monkeypatch)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(9, 4, 5 << 30))
    with pytest.raises(SystemExit, match="5 GiB are free, 12 are needed"):
        versions.environment(tmp_path, "2.9.1")
    assert ran == []


def test_what_is_done_stays_when_the_next_release_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def environment(folder: Path, release: str) -> Path:
        (folder / release).mkdir(exist_ok=True)
        return folder / release

    def row_of(python: Path, *_: Any) -> Row:
        if python.name == "2.15.0":
            raise RuntimeError("the network is gone")
        return {"known": {"a": "shows"}, "stale": {"a": "also shows"}}

    monkeypatch.setattr(versions, "environment", environment)
    monkeypatch.setattr(versions, "row_of", row_of)
    target, folder = tmp_path / "versions.json", tmp_path / "environments"
    (folder / "2.7.1").mkdir(parents=True)
    words = ["--folder", str(folder), "--json", str(target), "--torch"]
    assert versions.main([*words, "2.7.1", "2.9.1"]) == 1
    with pytest.raises(RuntimeError):
        versions.main([*words, "2.15.0"])
    assert list(json.loads(target.read_text())) == ["2.7.1", "2.9.1"]
    assert "| a | Y | Y |" in target.with_suffix(".md").read_text()
    # Only what it made itself is removed.
    assert [path.name for path in folder.iterdir()] == ["2.7.1"]


def test_some_defects_are_looked_at_beside_what_was_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def row_of(_: Path, *told: Any) -> Row:
        asked.append(told)
        return {"known": {"b": "passes", "d": "shows"}, "stale": {}}

    monkeypatch.setattr(versions, "environment", lambda folder, release: folder / release)
    monkeypatch.setattr(versions, "row_of", row_of)
    target = tmp_path / "versions.json"
    stale = {"a": "gone", "b": "also shows"}
    target.write_text(json.dumps({"2.15.0": {**ROWS["2.15.0"], "stale": stale}}))
    words = ["--json", str(target), "--torch", "2.15.0", "--defect", "b", "d"]
    assert versions.main(words) == 0
    ((parts, _, _, defects),) = asked
    assert (parts, defects) == (["known"], ["b", "d"])
    (row,) = json.loads(target.read_text()).values()
    assert row["known"] == {"a": "otherwise", "b": "passes", "d": "shows"}
    assert row["stale"] == {"a": "gone"}


def test_the_page_in_the_repository_is_made_from_its_figures() -> None:
    source = versions.ROOT / "benchmarks" / "versions.json"
    rows = json.loads(source.read_text())
    assert set(rows) <= set(RELEASES)
    assert source.with_suffix(".md").read_text() == matrix(rows)

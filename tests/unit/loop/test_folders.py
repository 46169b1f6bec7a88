"""Where a run keeps what it leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.corpus import read_entry
from fsdpfuzz.errors import UsageError
from fsdpfuzz.loop import Sighting, make_run_folder, run_name
from fsdpfuzz.loop._archive import FileArchive
from fsdpfuzz.verdict import Finding
from tests.unit.loop.standins import finding, make_case


def sighting(width: int, found: Finding, known: str | None = None) -> Sighting:
    return Sighting(
        case=make_case((width,)),
        finding=found,
        property_name="parity",
        backend="gloo",
        torch="2.13.0",
        seed=5,
        known=known,
    )


def test_runs_of_one_second_get_a_folder_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsdpfuzz.loop._folders.run_name", lambda label: f"then-{label}")
    folders = [make_run_folder(tmp_path, 7) for _ in range(3)]
    assert [folder.name for folder in folders] == ["then-7", "then-7-2", "then-7-3"]
    assert (tmp_path / "runs/latest").resolve() == folders[-1].resolve()
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        "latest",
        *(folder.name for folder in folders),
    ]


def test_names_sort_by_date() -> None:
    assert run_name("x", 0.0) == "1970-01-01-000000-x"
    assert run_name(9, 0.0) < run_name(1, 1.0)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("no folder")
    with pytest.raises(UsageError, match=r"runs/.*: the folder cannot be made"):
        make_run_folder(tmp_path, 1)


def test_a_finding_has_one_file_which_the_smaller_case_takes(tmp_path: Path) -> None:
    archive = FileArchive(tmp_path, tmp_path / "run")
    first = archive.keep(sighting(100, finding("big")))
    assert archive.keep(sighting(7, finding("big"))) == first
    assert first == tmp_path / "run/failures/big-mismatch-fsdp2.json"
    assert read_entry(first).case == make_case((7,))
    known = archive.keep(sighting(9, finding("big"), "K1"))
    assert known != first, "what is known is kept beside what is new"
    archive.drop(first)
    assert [path.name for path in first.parent.iterdir()] == [known.name]

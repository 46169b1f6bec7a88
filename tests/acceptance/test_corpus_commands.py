"""``fsdpfuzz corpus``: list, show, add, prune, check."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsdpfuzz.corpus import Entry, Found, Known, known_document, read_entry, write_entry
from fsdpfuzz.spec import CaseSpec, digest
from tests.acceptance.commands import ROOT, fsdpfuzz
from tests.unit.show.samples import REFUSED, RICH, SMALL

KNOWN = ROOT / "corpus" / "known.json"


def found(steps: int = 0) -> Found:
    return Found(
        key="grad_parity/mismatch/fsdp2",
        message="grad=1, but should be 2",
        property="parity",
        torch="2.13.0",
        backend="gloo",
        world_size=2,
        date="2026-11-20",
        seed=3,
        shrink_steps=steps,
    )


def save(path: Path, case: CaseSpec, **fields: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_entry(path, Entry(case=case, **fields))  # type: ignore[arg-type]
    return path


def test_list(tmp_path: Path) -> None:
    save(tmp_path / "corpus" / "seeds" / "a.json", RICH, origin="test_x.py: test_y[1]")
    save(tmp_path / "corpus" / "failures" / "b.json", SMALL, found=found())
    done = fsdpfuzz("corpus", "list", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"{digest(SMALL)}  fsdp2  2 ranks  corpus/failures/b.json  grad_parity/mismatch/fsdp2",
        f"{digest(RICH)}  fsdp1  4 ranks  corpus/seeds/a.json  test_x.py: test_y[1]",
    ]


def test_list_names_what_is_no_case_and_goes_on(tmp_path: Path) -> None:
    save(tmp_path / "corpus" / "b.json", SMALL)
    (tmp_path / "corpus" / "a.json").write_text("{}")
    done = fsdpfuzz("corpus", "list", "corpus", cwd=tmp_path)
    assert done.returncode == 2
    assert digest(SMALL) in done.stdout
    assert "corpus/a.json: " in done.stderr
    assert fsdpfuzz("corpus", "list", "nowhere", cwd=tmp_path).returncode == 2


def test_show(tmp_path: Path) -> None:
    path = save(tmp_path / "a.json", SMALL, found=found())
    done = fsdpfuzz("corpus", "show", path, cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith(f"digest      {digest(SMALL)}\n")
    document = json.loads(done.stdout[done.stdout.index("\n{") :])
    assert document["world_size"] == 2


def test_add(tmp_path: Path) -> None:
    source = save(tmp_path / "new" / "a.json", SMALL, found=found())
    arguments = ("corpus", "add", source, "--to", "kept", "--origin", "ours")
    done = fsdpfuzz(*arguments, cwd=tmp_path)
    assert done.returncode == 0
    (kept,) = (tmp_path / "kept").iterdir()
    assert read_entry(kept).origin == "ours"
    assert f"added, kept/{kept.name}" in done.stdout
    assert "there already" in fsdpfuzz(*arguments, cwd=tmp_path).stdout
    assert len(list((tmp_path / "kept").iterdir())) == 1


def test_prune(tmp_path: Path) -> None:
    save(tmp_path / "corpus" / "large.json", RICH, found=found())
    save(tmp_path / "corpus" / "small.json", SMALL, found=found(steps=4))
    save(tmp_path / "corpus" / "seed.json", REFUSED, origin="a document")
    dry = fsdpfuzz("corpus", "prune", "--dry-run", cwd=tmp_path)
    assert "corpus/large.json: would go, shrunk to a smaller case: corpus/small.json" in dry.stdout
    assert (tmp_path / "corpus" / "large.json").exists()
    done = fsdpfuzz("corpus", "prune", cwd=tmp_path)
    assert done.stdout.endswith("1 file\n")
    assert sorted(p.name for p in (tmp_path / "corpus").iterdir()) == ["seed.json", "small.json"]
    assert fsdpfuzz("corpus", "prune", "nowhere", cwd=tmp_path).returncode == 2


@pytest.fixture
def two_entries(tmp_path: Path) -> Path:
    """A known file with an entry that shows on this torch, and one whose case does not fail."""
    known = {entry.id: entry for entry in Known.load(KNOWN).entries}
    document = json.loads(known_document((known["fsdp1-identity-unit"],)))
    shows = document["known"][0]
    gone = json.loads(known_document((known["fsdp1-single-element-accumulation"],)))["known"][0]
    gone["id"] = "gone-for-long"
    # One backward instead of two: the accumulation that the defect needs is not there.
    gone["case"]["program"] = gone["case"]["program"][2:]
    gone["when"] = {"api": ["fsdp1"]}
    path = tmp_path / "known.json"
    path.write_text(json.dumps({"schema": 1, "known": [shows, gone]}))
    return path


def test_check(two_entries: Path, tmp_path: Path) -> None:
    done = fsdpfuzz("corpus", "check", two_entries, "--backend", "gloo", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    shows, gone = done.stdout.splitlines()
    assert shows == "fsdp1-identity-unit: still shows"
    assert gone.startswith("gone-for-long: no longer fails")


def test_check_of_what_still_shows_is_content(two_entries: Path, tmp_path: Path) -> None:
    document = json.loads(two_entries.read_text())
    two_entries.write_text(json.dumps({**document, "known": document["known"][:1]}))
    done = fsdpfuzz("corpus", "check", two_entries, "--backend", "gloo", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "fsdp1-identity-unit: still shows\n")


def test_check_of_a_bad_file(tmp_path: Path) -> None:
    (tmp_path / "known.json").write_text("[]")
    done = fsdpfuzz("corpus", "check", "known.json", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1

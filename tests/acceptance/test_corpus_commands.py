"""``fsdpfuzz corpus``: list, show, add, prune, check, known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fsdpfuzz.case import CaseSpec, digest
from fsdpfuzz.corpus import Entry, Found, read_entry, write_entry
from fsdpfuzz.known import Known, read_defect
from tests.acceptance.commands import ROOT, fsdpfuzz
from tests.unit.show.samples import REFUSED, RICH, SMALL

KNOWN = ROOT / "corpus" / "known"
SHOWS, KEPT = "fsdp1-identity-unit", "fsdp1-kept-quiet-unit"
"""Two that this torch has."""


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


def without_its_defect() -> dict[str, Any]:
    """A known defect whose smallest case does not fail: one backward instead of two."""
    text = (KNOWN / "fsdp1-single-element-accumulation.json").read_text()
    document: dict[str, Any] = json.loads(text)
    document["case"]["program"] = document["case"]["program"][2:]
    del document["when"]["unit"]["reduced_again"]
    document["not"] = [other for other in document["not"] if "case" not in other]
    return document


@pytest.fixture
def two_defects(tmp_path: Path) -> Path:
    """A folder with a defect that shows on this torch, and one that is gone for long."""
    folder = tmp_path / "corpus" / "known"
    folder.mkdir(parents=True)
    (folder / f"{SHOWS}.json").write_bytes((KNOWN / f"{SHOWS}.json").read_bytes())
    (folder / "gone-for-long.json").write_text(json.dumps(without_its_defect()))
    return folder


@pytest.mark.parametrize("command", [("check",), ("known", "check")])
def test_check(command: tuple[str, ...], two_defects: Path, tmp_path: Path) -> None:
    done = fsdpfuzz("corpus", *command, "--backend", "gloo", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    shows, gone = done.stdout.splitlines()
    assert shows == f"{SHOWS}: still shows; refuses 4 others"
    assert gone.startswith("gone-for-long: no longer fails")
    assert '"gone": "' in gone


def test_check_of_what_still_shows_is_content(two_defects: Path, tmp_path: Path) -> None:
    path = two_defects / f"{SHOWS}.json"
    said = f"{SHOWS}: still shows; refuses 4 others\n"
    for arguments in (("check", path), ("known", "check", "--known", path)):
        done = fsdpfuzz("corpus", *arguments, "--backend", "gloo", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, said), done.stderr


def test_check_says_how_it_fails_otherwise(tmp_path: Path) -> None:
    """An entry about another exception than the one that its case raises."""
    document = json.loads((KNOWN / f"{SHOWS}.json").read_text())
    document["shows"][0]["text"] = "something else"
    document["finding"]["failure"]["text"] = "something else"
    (tmp_path / "otherwise.json").write_text(json.dumps(document))
    known = ("--known", "otherwise.json", "--backend", "gloo")
    done = fsdpfuzz("corpus", "known", "check", *known, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("otherwise: fails in another way: no_crash/crash/fsdp1:")
    assert "expected to be in states" in done.stdout


def test_check_skips_what_only_another_backend_has(two_defects: Path, tmp_path: Path) -> None:
    path = KNOWN / "fsdp1-offloaded-local-state.json"
    known = ("--known", path, "--backend", "gloo")
    done = fsdpfuzz("corpus", "known", "check", *known, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (
        0,
        "fsdp1-offloaded-local-state: not run: seen on nccl alone; refuses 2 others\n",
    )


@pytest.mark.parametrize("command", ["check", "list"])
def test_a_bad_file_is_named(command: str, two_defects: Path, tmp_path: Path) -> None:
    (two_defects / "bad.json").write_text("[]")
    done = fsdpfuzz("corpus", "known", command, cwd=tmp_path)
    assert done.returncode == 2
    assert f"fsdpfuzz: {Path('corpus/known/bad.json')}: $: " in done.stderr


@pytest.mark.parametrize("command", ["check", "list"])
def test_a_folder_that_is_not_there_is_named(command: str, tmp_path: Path) -> None:
    done = fsdpfuzz("corpus", "known", command, "--known", "nowhere", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "nowhere" in done.stderr
    assert done.stderr.count("\n") == 1


def test_known_list(two_defects: Path, tmp_path: Path) -> None:
    done = fsdpfuzz("corpus", "known", "list", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [SHOWS, "gone-for-long"]
    defect = read_defect(KNOWN / f"{SHOWS}.json")
    assert lines[0].endswith(defect.title)
    assert f"gloo {defect.seen['gloo'][0]} to {defect.seen['gloo'][-1]}" in lines[0]


def failure_of(path: Path, name: str) -> Path:
    """What a run keeps when it meets a known defect that it does not know."""
    known = Known.load(KNOWN)
    finding = known.defects[name].finding
    provenance = msgspec.structs.replace(
        found(), key=finding.key, message=finding.message, finding=finding, torch="2.12.1+cpu"
    )
    return save(path, known.minimal(name), found=provenance)


def test_known_add(tmp_path: Path) -> None:
    failure = failure_of(tmp_path / "failure.json", KEPT)
    add = ("corpus", "known", "add", failure, "--backend", "gloo")
    done = fsdpfuzz(*add, "--id", "kept-whole", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "corpus" / "known" / "kept-whole.json"
    made = read_defect(path)
    said = dict(line.partition(": ")[::2] for line in done.stdout.splitlines())
    assert said["corpus/known/kept-whole.json"] == "written"
    assert "sharding=SHARD_GRAD_OP" in said["asks for"]
    assert said["to be filled in"] == "reason, link, way_around"

    assert made.when.unit["sharding"] == ("SHARD_GRAD_OP",)
    assert made.when.unit["gradient"] == ("off",)
    assert made.title == "FSDP1 leaves a unit unsharded after backward"
    assert made.seen["gloo"][0] == "2.12.1"
    case, finding = Known.load(KNOWN).minimal(KEPT), Known.load(KNOWN).defects[KEPT].finding
    assert made.explains(case, finding)
    assert not made.explains(case, msgspec.structs.replace(finding, unit="1"))
    assert len(made.refuses) >= 2

    listed = fsdpfuzz("corpus", "known", "list", cwd=tmp_path)
    assert listed.stdout.startswith("kept-whole  gloo 2.12.1")
    assert listed.stdout.endswith("(reason to be written)\n")
    checked = fsdpfuzz("corpus", "known", "check", "--backend", "gloo", cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.startswith("kept-whole: still shows; refuses ")

    before = path.read_bytes()
    again = fsdpfuzz(*add, "--id", "kept-whole", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (2, "")
    assert "kept-whole.json: is there already" in again.stderr
    other = fsdpfuzz(*add, "--id", "another", cwd=tmp_path)
    assert (other.returncode, other.stdout) == (2, "")
    assert "failure.json: it is known as kept-whole already" in other.stderr
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["kept-whole.json"]


def test_known_add_names_the_file_by_the_finding(tmp_path: Path) -> None:
    failure = failure_of(tmp_path / "failure.json", "fsdp1-local-state-of-originals")
    add = ("corpus", "known", "add", failure, "--known", "mine", "--backend", "gloo")
    done = fsdpfuzz(*add, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "mine").iterdir()
    assert path.name == "fsdp1-saves-a-state-dict-with-wrong-entries.json"
    assert Known.load(path).defects[path.stem].when.unit["use_orig_params"] == ("on",)


def test_known_add_of_what_does_not_show(tmp_path: Path) -> None:
    failure = failure_of(tmp_path / "failure.json", KEPT)
    entry = read_entry(failure)
    sound = msgspec.structs.replace(entry.case, frozen=())
    save(failure, sound, found=entry.found)
    add = ("corpus", "known", "add", failure, "--backend", "gloo")
    done = fsdpfuzz(*add, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "the case shows nothing, not resharded_after_backward/leak/fsdp1" in done.stderr
    assert not list(tmp_path.glob("corpus/known/*"))


def test_known_add_of_a_case_without_a_finding(tmp_path: Path) -> None:
    save(tmp_path / "a.json", SMALL)
    done = fsdpfuzz("corpus", "known", "add", "a.json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "a.json: no finding is saved with the case" in done.stderr


@pytest.mark.parametrize("name", ["", "No Id", "../x", "a"])
def test_known_add_under_a_name_that_is_no_id(name: str, tmp_path: Path) -> None:
    failure = failure_of(tmp_path / "failure.json", KEPT)
    done = fsdpfuzz("corpus", "known", "add", failure, "--id", name, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "is not an id" in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["failure.json"]

"""The table of real bugs, how findings are looked up in it, and the page."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from benchmarks.rediscovery import Bug, Rediscovered, Row, Search, bugs_of, page, together
from benchmarks.versions import RELEASES
from fsdpfuzz.case import CaseSpec
from fsdpfuzz.corpus import Entry, write_entry
from fsdpfuzz.known import Known
from fsdpfuzz.loop import Found, Script
from fsdpfuzz.verdict import Finding
from tests.unit.known.samples import shipped

NAME = "fsdp2-tie-across-groups"
BUG = Bug(id="1", link="https://x.org/1", what="w", since="2.8", gone="2.12", known=(NAME,))
KEYED = Bug(id="2", link="", what="v", since=None, gone=None, keys=("^no_crash/.*mixed Tensor",))


def found(folder: Path, finding: Finding, case: CaseSpec, *also: str) -> Found:
    path = folder / "case.json"
    write_entry(path, Entry(case=case))
    script = Script(path=folder / "a.py", confirmed=True, note="")
    return Found(
        finding=finding,
        property_name="parity",
        case=path,
        digest="0",
        examples_to_find=7,
        script=script,
        also=also,
    )


def test_the_table_names_known_defects_and_releases_that_are_tried() -> None:
    bugs = bugs_of()
    assert len({bug.id for bug in bugs}) == len(bugs) >= 10
    for bug in bugs:
        assert bug.known or bug.keys
        assert set(bug.known) <= set(shipped().defects), bug.id
        assert all(re.compile(pattern) for pattern in bug.keys)
        assert any(bug.lives_in(release) for release in RELEASES), bug.id
        if bug.id.isdigit():
            assert bug.link.endswith(f"/{bug.id}")


def test_a_known_defect_lives_where_its_bug_does() -> None:
    """What the table says of releases and what the entries say is the same."""
    defects = shipped().defects
    for bug in bugs_of():
        for release in RELEASES:
            has = [defects[name].applies(torch=release, backend="gloo") for name in bug.known]
            assert not bug.known or any(has) <= bug.lives_in(release), (bug.id, release)


@pytest.mark.parametrize(
    ("release", "lives"), [("2.7.1", False), ("2.8.0", True), ("2.10.0", True), ("2.12.1", False)]
)
def test_a_bug_lives_in_some_releases(release: str, lives: bool) -> None:
    assert BUG.lives_in(release) is lives
    assert KEYED.lives_in(release)


def test_a_finding_is_looked_up_by_what_explains_it_or_by_its_keys(tmp_path: Path) -> None:
    known = shipped()
    case, finding = known.minimal(NAME), known.defects[NAME].finding
    search = Search((BUG, KEYED), known)
    search.note(found(tmp_path, finding, case))
    assert search.found["1"] == Rediscovered(
        key=finding.key, examples=7, script="a.py", confirmed=True
    )
    assert search.missed == ("2",)
    other = msgspec.structs.replace(finding, invariant="shard_bytes", quantity="bytes", name="")
    search.note(found(tmp_path, other, case, "no_crash/crash/fsdp2:mixed Tensor"))
    assert not search.missed


def test_what_is_no_bug_of_the_table_gets_no_script(tmp_path: Path) -> None:
    known = shipped()
    case, finding = known.minimal(NAME), known.defects[NAME].finding
    search = Search((KEYED,), Known())
    met = found(tmp_path, finding, case)
    # No session is needed where nothing is written.
    script = search.script(None, met, case, None)  # type: ignore[arg-type]
    assert (script.path, script.confirmed) == (None, False)


def test_seeds_side_by_side_are_one_row() -> None:
    late = Rediscovered(key="k", examples=90, script="late.py", confirmed=True)
    soon = Rediscovered(key="k", examples=12, script="soon.py", confirmed=True)
    first = Rediscovered(key="k", examples=3, script="", confirmed=False)
    rows = [
        Row(torch="2.9.1", seeds=(n,), examples=100, seconds=n, found=found, missed=missed)
        for n, found, missed in (
            (5, {"1": late}, ("2", "3")),
            (6, {"1": first, "2": first}, ("3",)),
            (7, {"1": soon}, ("2", "3")),
        )
    ]
    row = together(rows)
    assert (row.seeds, row.examples, row.seconds) == ((5, 6, 7), 300, 7)
    assert row.found == {"1": soon, "2": first}
    assert row.missed == ("3",)


def test_the_page_counts_what_was_found_again() -> None:
    again = Rediscovered(key="k", examples=12, script="s.py", confirmed=True)
    row = Row(torch="2.9.1", seeds=(5,), examples=100, seconds=9, found={"1": again}, missed=("2",))
    older = Row(torch="2.7.1", seeds=(5,), examples=100, seconds=9, found={}, missed=("2",))
    late = msgspec.structs.replace(BUG, id="3", link="")
    text = page({"2.9.1": row, "2.7.1": older}, (BUG, KEYED, late))
    assert "| 3 | w |  | not asked |" in text
    assert "| [1](https://x.org/1) | w |  | 12* |" in text
    assert "| 2 | v | ? | ? |" in text
    assert "Of 3 bugs 1 were found again, 1 with a script" in text
    assert "| 2.9.1 | 100 | 5 | 9 | 1 | 2 |" in text
    assert "- 2.9.1, 1: `s.py`" in text

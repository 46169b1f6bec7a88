from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fsdpfuzz.case import MAX_FILE_BYTES, as_document, decode, encode, pretty
from fsdpfuzz.corpus import Entry, find_entries, parse_entry, read_entry, write_entry
from fsdpfuzz.corpus import _entry as entry_module
from fsdpfuzz.errors import CaseError, UsageError
from fsdpfuzz.verdict import Failure
from tests.unit.corpus.samples import ENTRIES, FINDING, found, large, small

REPOSITORY = Path(__file__).parents[3]
FOUND = msgspec.to_builtins(found())
GIVEN = msgspec.to_builtins(FINDING)


@pytest.mark.parametrize("entry", ENTRIES, ids=["bare", "found", "finding", "origin"])
def test_what_is_written_is_read_again(entry: Entry, tmp_path: Path) -> None:
    path = tmp_path / "new" / "case.json"
    write_entry(path, entry)
    assert read_entry(path) == entry
    assert path.read_text().startswith('{\n  "schema": 1,')


def test_a_bare_case_is_an_entry() -> None:
    assert parse_entry(pretty(large()).encode(), "x.json") == Entry(case=large())


@pytest.mark.parametrize(
    ("spoil", "path", "reason"),
    [
        ({"schema": 7}, "$.schema", "newer"),
        ({"schema": -3}, "$.schema", "no schema -3"),
        ({"schema": True}, "$.schema", "no schema version"),
        ({"schema": [1]}, "$.schema", "no schema version"),
        ({"foud": {}}, "$", "foud"),
        ({"found": {"key": "x"}}, "$.found", "missing"),
        ({"found": {"key": 1}}, "$.found.key", "str"),
        ({"found": {**FOUND, "finding": {}}}, "$.found.finding", "missing"),
        ({"found": {**FOUND, "finding": {**GIVEN, "op": "x"}}}, "$.found.finding.op", "int"),
        ({"found": {**FOUND, "finding": {**GIVEN, "where": ""}}}, "$.found.finding", "where"),
        ({"origin": 5}, "$.origin", "str"),
        ({"case": 5}, "$.case", "object"),
        ({"case": {**as_document(small()), "worldsize": 2}}, "$.case", "worldsize"),
        ({"case": {**as_document(small()), "world_size": 99}}, "$.case.world_size", "<= 8"),
        ({"case": {**as_document(small()), "frozen": ["no"]}}, "$.case.frozen[0]", "'no'"),
    ],
)
def test_a_fault_is_named_with_file_and_path(spoil: dict[str, Any], path: str, reason: str) -> None:
    document = {"schema": 1, "case": as_document(small()), **spoil}
    with pytest.raises(CaseError) as caught:
        parse_entry(json.dumps(document).encode(), "some/where.json")
    assert caught.value.path == path
    assert str(caught.value).startswith(f"some/where.json: {path}: ")
    assert reason in str(caught.value)


def test_an_older_document_is_brought_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """A made-up schema 0 wrote ``ranks`` for ``world_size`` and kept the key bare."""

    def from_0(document: dict[str, Any]) -> dict[str, Any]:
        bare = "case" not in document
        case = dict(document if bare else document["case"])
        case["world_size"] = case.pop("ranks")
        if bare:
            return case
        return {**document, "case": case, "found": {**document["found"], "seed": 0}}

    monkeypatch.setitem(entry_module.MIGRATIONS, 0, from_0)
    case = as_document(small())
    case["schema"] = 0
    case["ranks"] = case.pop("world_size")
    old = {name: getattr(found(), name) for name in found().__struct_fields__ if name != "seed"}

    assert parse_entry(json.dumps(case).encode(), "x") == Entry(case=small())
    envelope = {"schema": 0, "case": case, "found": old}
    entry = parse_entry(json.dumps(envelope).encode(), "x")
    assert entry == Entry(case=small(), found=found(seed=0))

    with pytest.raises(CaseError, match=r"^x: \$: cannot be brought from schema 0 to 1: KeyError"):
        parse_entry(b'{"schema": 0, "case": {}}', "x")
    with pytest.raises(CaseError, match=r"there is no schema -1; this fsdpfuzz reads 1, 0"):
        parse_entry(b'{"schema": -1, "case": {}}', "x")


def test_long_and_unprintable_texts_can_be_kept(tmp_path: Path) -> None:
    message = os.fsdecode(b"\xff") + "\x1b[31m" + "m" * 50_000
    write_entry(tmp_path / "x.json", Entry(case=small(), found=found("k" * 9_000, message=message)))
    kept = read_entry(tmp_path / "x.json").found
    assert kept is not None
    assert kept.message.startswith("\\udcff\x1b[31mmmm")
    assert kept.message.endswith("m…")
    assert kept.key.startswith("kkk")


def test_a_file_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b" " * MAX_FILE_BYTES + pretty(small()).encode())
    with pytest.raises(CaseError, match="larger than"):
        read_entry(path)


def test_what_reads_no_file_says_so(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    for name, reason in (("pipe.json", "not a file"), ("", "not a file"), ("no", "no such file")):
        with pytest.raises(CaseError, match=reason):
            read_entry(tmp_path / name)
    with pytest.raises(CaseError, match="cannot be read"):
        read_entry(tmp_path / ("x" * 300))


def test_folders_are_searched_and_what_is_no_case_passed_over(tmp_path: Path) -> None:
    for name in (
        "b.json",
        "a/z.json",
        "a/a.json",
        "known/x.json",
        "a/known/x.json",
        "notes.txt",
        ".hidden.json",
        ".git/x.json",
        "inflight-12.json",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    names = [str(path.relative_to(tmp_path)) for path in find_entries([tmp_path])]
    assert names == ["a/a.json", "a/z.json", "b.json"]
    twice = list(find_entries([tmp_path / "b.json", tmp_path, tmp_path / "a"]))
    assert [path.name for path in twice] == ["b.json", "a.json", "z.json"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gone.json", "no such file or folder"),
        ("notes.txt", r"\.json files"),
        ("x" * 300, "cannot be read"),
    ],
)
def test_a_named_file_that_is_no_case_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UsageError, match=reason) as caught:
        list(find_entries([tmp_path / name]))
    assert str(caught.value).startswith(str(tmp_path / name))


def test_a_known_defect_stands_for_its_smallest_case(tmp_path: Path) -> None:
    """Named, or in a folder of its own, it is a case like any other."""
    path = REPOSITORY / "corpus" / "known" / "fsdp1-identity-unit.json"
    entry = read_entry(path)
    assert encode(entry.case) == encode(decode(json.dumps(raw_case(path)).encode()))
    assert (entry.origin, entry.found) == ("known defect fsdp1-identity-unit", None)
    (tmp_path / "known").mkdir()
    (tmp_path / "known" / "x.json").write_bytes(path.read_bytes())
    assert list(find_entries([tmp_path])) == []
    assert [found.name for found in find_entries([tmp_path / "known"])] == ["x.json"]


def raw_case(path: Path) -> dict[str, Any]:
    case: dict[str, Any] = json.loads(path.read_text())["case"]
    return case


def test_long_texts_of_a_finding_are_cut_as_well(tmp_path: Path) -> None:
    failure = Failure(type="RuntimeError", text=os.fsdecode(b"\xff") + "t" * 9_000)
    finding = msgspec.structs.replace(FINDING, failure=failure)
    write_entry(tmp_path / "x.json", Entry(case=small(), found=found(finding=finding)))
    kept = read_entry(tmp_path / "x.json").found
    assert kept is not None
    assert kept.finding is not None
    assert kept.finding.failure is not None
    assert kept.finding.failure.text.startswith("\\udcffttt")
    assert kept.finding.failure.text.endswith("t…")


def test_a_hostile_file_name_is_printed_as_one_line(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"a\nb\x1b[2J\xff.json")
    with pytest.raises(UsageError) as caught:
        list(find_entries([path]))
    assert r"a\nb\x1b[2J\udcff.json: no such file" in str(caught.value)
    path.write_text("{")
    with pytest.raises(CaseError) as refused:
        read_entry(path)
    assert r"a\nb\x1b[2J\udcff.json: $: not valid JSON" in str(refused.value)

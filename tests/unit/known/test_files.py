"""Files of known defects: what is written is read again, and a mistake is named."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fsdpfuzz.case import as_document
from fsdpfuzz.cli import main
from fsdpfuzz.errors import CaseError, UsageError
from fsdpfuzz.known import Known, read_defect, write_defect
from tests.unit.corpus.spoil import SPOILERS
from tests.unit.known.samples import crash, defect, document, put, two_layers

REFUSAL = re.compile(r"\$[^ ]*: .+")


def finding(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = document()["finding"]
    return {**found, **changes}


def must_not(**changes: Any) -> list[dict[str, Any]]:
    others: list[dict[str, Any]] = document()["not"]
    return [others[0], {**others[1], **changes}]


def shows(**changes: Any) -> list[dict[str, Any]]:
    patterns: list[dict[str, Any]] = document()["shows"]
    return [{**patterns[0], **changes}, patterns[1]]


def when(**parts: Any) -> dict[str, Any]:
    asked: dict[str, Any] = document()["when"]
    return {**asked, **parts}


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a-known-one.json"
    write_defect(path, defect())
    again = read_defect(path)
    assert json.loads(path.read_text()) == document()
    second = tmp_path / "another.json"
    write_defect(second, again)
    assert second.read_bytes() == path.read_bytes()
    known = Known.load(path)
    assert known.minimal("a-known-one") == two_layers()
    assert [case for case, _ in known.refused("a-known-one")] == [two_layers(), two_layers()]


def test_a_refused_finding_may_have_a_case_of_its_own(tmp_path: Path) -> None:
    other = two_layers(frozen=False)
    others = must_not(case=as_document(other))
    known = Known.load(put(tmp_path, "a-known-one", **{"not": others}))
    assert [case for case, _ in known.refused("a-known-one")] == [two_layers(), other]


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    path = put(tmp_path)
    before = path.read_bytes()
    with pytest.raises(UsageError, match=r"a-known-one\.json: is there already"):
        write_defect(path, defect(title="something else, and newer"))
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a-known-one.json"]


def test_what_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match="does not explain its own finding"):
        write_defect(tmp_path / "a-known-one.json", defect(finding=crash(text="else")))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_or_a_file_is_read_and_nothing_else(tmp_path: Path) -> None:
    put(tmp_path, "second")
    put(tmp_path, "first")
    (tmp_path / "notes.txt").write_text("none of them")
    assert list(Known.load(tmp_path).defects) == ["first", "second"]
    assert list(Known.load(tmp_path / "second.json").defects) == ["second"]
    assert Known.load(tmp_path.parent / tmp_path.name).defects.keys() == {"first", "second"}
    with pytest.raises(UsageError, match="no such file or folder of known defects"):
        Known.load(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    assert Known.load(tmp_path / "empty").defects == {}


FAULTS: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({"title": None}, "$", "missing required field `title`"),
    ({"reason": "because"}, "$.reason", ">= 20"),
    ({"link": "javascript:alert(1)"}, "$.link", "matching regex"),
    ({"date": "yesterday"}, "$.date", "matching regex"),
    ({"seen": {}}, "$.seen", ">= 1"),
    ({"seen": {"gloo": []}}, "$.seen[...]", ">= 1"),
    ({"seen": {"mpi": ["2.7.0"]}}, "$.seen", "mpi"),
    ({"seen": {"gloo": ["2.7..x"]}}, "$.seen.gloo[0]", "no version"),
    ({"gone": "2.14.oops"}, "$.gone", "no version"),
    ({"note": "x"}, "$", "unknown field"),
    ({"schema": 2}, "$.schema", "2"),
    ({"when": {"case": {}}}, "$.when.case", ">= 1"),
    ({"when": {"case": {"api": []}}}, "$.when.case[...]", ">= 1"),
    ({"when": {"case": {"api": "fsdp1"}}}, "$.when.case[...]", "array"),
    ({"when": {"unit": {}}}, "$.when", "missing required field `case`"),
    ({"when": when(case={"apy": ["fsdp1"]})}, "$.when.case", "a case has no feature 'apy'; it"),
    ({"when": when(unit={"tide": ["no"]})}, "$.when.unit", "a unit has no feature 'tide'; it"),
    (
        {"when": when(parameter={"api": ["x"]})},
        "$.when.parameter",
        "it has changed_alone, counted_steps, cut_along, decaying_state, emptied, empty, "
        "extension, frozen, frozen_in_no_sync, frozen_with_gradient, lacked_in_no_sync, lacking, "
        "lacking_state, left_out_frozen, loaded_frozen, lost_change, made_state, name_within, "
        "offloaded_dropout, rows, set_early, sharded_along, state_tensors, stateless, stored_low, "
        "stored_state, tied, transposed, unfrozen_in_inference, unstepped, used",
    ),
    (
        {"when": when(case={"api": ["fsdp1", "fsdp3"]})},
        "$.when.case.api",
        "api is never 'fsdp3'; it can be fsdp1, fsdp2",
    ),
    (
        {"when": when(unit={"freeze": ["al"]})},
        "$.when.unit.freeze",
        "freeze is never 'al'; it can be none, all, some",
    ),
    ({"when": when(case={"api": ["fsdp2"]})}, "$.when", "does not cover its own case"),
    ({"when": when(unit={"freeze": ["some"]})}, "$.when", "does not cover its own case"),
    ({"shows": []}, "$.shows", ">= 1"),
    ({"shows": shows(invariant=["grad_purity"])}, "$.shows[0].invariant", "'grad_purity'; there"),
    ({"shows": shows(text="(")}, "$.shows[0].text", "not a regular expression"),
    ({"shows": shows(text="a{99999999999999999999}")}, "$.shows[0].text", "not a regular"),
    ({"shows": shows(text="(" * 400)}, "$.shows[0].text", "not a regular expression"),
    ({"shows": shows(text=".*")}, "$.shows[0].text", "fits any text"),
    ({"shows": shows(text="a?")}, "$.shows[0].text", "fits any text"),
    ({"shows": shows(text=".+")}, "$.shows[0].text", "fits any text"),
    ({"shows": shows(text="x" * 501)}, "$.shows[0].text", "<= 500"),
    ({"shows": shows(names="everything")}, "$.shows[0].names", "everything"),
    ({"shows": [{"invariant": ["grad_parity"]}]}, "$.shows[0]", "whatever breaks the invariant"),
    ({"shows": shows(detail=["zero"])}, "$.shows", "does not explain its own finding"),
    ({"finding": None}, "$", "missing required field `finding`"),
    ({"finding": finding(name="1.weight")}, "$.shows", "does not explain its own finding"),
    ({"finding": finding(invariant="none")}, "$.finding.invariant", "no invariant 'none'"),
    ({"finding": finding(symptom="odd")}, "$.finding.symptom", "odd"),
    ({"case": {}}, "$.case", "missing"),
    ({"case": {**as_document(two_layers()), "seed": -1}}, "$.case.seed", ">= 0"),
    ({"not": []}, "$.not", ">= 2"),
    ({"not": must_not()[:1]}, "$.not", ">= 2"),
    ({"not": must_not(why="no")}, "$.not[1].why", ">= 10"),
    ({"not": must_not(finding=finding())}, "$.not[1]", "explains what it must not: another crash"),
    ({"not": must_not(case={"schema": 1})}, "$.not[1].case", "missing"),
    (
        {"not": must_not(finding=finding(invariant="odd"))},
        "$.not[1].finding.invariant",
        "no invariant",
    ),
)


@pytest.mark.parametrize(("fault", "path", "reason"), FAULTS)
def test_a_mistake_is_named_with_file_and_place(
    tmp_path: Path, fault: dict[str, Any], path: str, reason: str
) -> None:
    file = put(tmp_path, **fault)
    with pytest.raises(CaseError) as caught:
        Known.load(tmp_path)
    assert str(caught.value).startswith(f"{file}: {path}: ")
    assert reason in str(caught.value)


@pytest.mark.parametrize(("fault", "path", "reason"), FAULTS)
def test_the_command_ends_with_a_line_and_exit_code_2(
    tmp_path: Path,
    fault: dict[str, Any],
    path: str,
    reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = put(tmp_path, **fault)
    assert main(["corpus", "known", "check", "--known", str(tmp_path), "--backend", "gloo"]) == 2
    out, said = capsys.readouterr()
    assert out == ""
    assert said.startswith(f"fsdpfuzz: {file}: {path}: ")
    assert " ".join(reason.split()) in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("name", ["No-Id", "x", "a" * 81, "under_score", "a known one"])
def test_a_name_that_is_no_id_is_refused(tmp_path: Path, name: str) -> None:
    put(tmp_path, name)
    with pytest.raises(CaseError, match="the name is the id: 3 to 80 lower-case letters"):
        Known.load(tmp_path)


@pytest.mark.parametrize(
    ("feature", "value"),
    [
        ("world_size", "7"),
        ("steps", "6"),
        ("checkpoint", "wrapper-reentrant-within"),
        ("variants", "plan+frozen"),
        ("kinds", "dropout+switch"),
    ],
)
def test_a_feature_whose_values_cannot_be_listed_takes_any(
    tmp_path: Path, feature: str, value: str
) -> None:
    own = {"world_size": "2", "steps": "0", "checkpoint": "none", "variants": "no", "kinds": "no"}
    asked = {"api": ["fsdp1"], feature: [own[feature], value]}
    assert Known.load(put(tmp_path, when=when(case=asked))).defects


def test_a_spoilt_file_is_refused_in_one_line_or_still_sound(tmp_path: Path) -> None:
    rng = Random(2027)
    base = document()
    path = tmp_path / "a-known-one.json"
    refused = 0
    for i in range(1_500):
        spoiler = SPOILERS[i % len(SPOILERS)]
        path.write_bytes(spoiler(rng, base))
        try:
            Known.load(path)
        except CaseError as error:
            refused += 1
            message = str(error)
            assert message.isprintable()
            assert message.startswith(f"{path}: $"), message
            assert REFUSAL.fullmatch(message.removeprefix(f"{path}: ")), message
    assert refused > 700

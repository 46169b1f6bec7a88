from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fsdpfuzz.corpus import Known, Ledger, known_document
from fsdpfuzz.errors import CaseError
from fsdpfuzz.spec import CaseSpec, Fsdp1Unit, Twin, as_document, features
from fsdpfuzz.verdict import Finding
from tests.unit.corpus.samples import known_row, large, small

REPOSITORY = Path(__file__).parents[3]
MATCHING = Finding(
    invariant="grad_parity",
    symptom="mismatch",
    where="fsdp1:grad",
    message="observed 2.0, but should be 1.0 [grad(0.weight)]",
)


def load(tmp_path: Path, *rows: dict[str, Any]) -> Known:
    path = tmp_path / "known.json"
    path.write_text(json.dumps({"schema": 1, "known": list(rows)}))
    return Known.load(path)


def match(
    known: Known,
    finding: Finding = MATCHING,
    case: CaseSpec | None = None,
    torch: str = "2.13.0+cpu",
    backend: str = "gloo",
) -> str | None:
    entry = known.match(case or large(), finding, torch=torch, backend=backend)
    return entry.id if entry is not None else None


def changed(**changes: Any) -> Finding:
    return msgspec.structs.replace(MATCHING, **changes)


def test_an_entry_explains_its_finding(tmp_path: Path) -> None:
    known = load(tmp_path, known_row())
    assert match(known) == "a-known-one"
    for torch in ("2.7.0", "2.13.1", "2.13.0a0+git1234", "2.9.0.dev20260101+cu130"):
        assert match(known, torch=torch) == "a-known-one", torch


@pytest.mark.parametrize("where", ["fsdp1:plain:grad", "fsdp1:plain"])
def test_a_finding_of_a_twin_counts_as_one_of_the_case_that_the_twin_is(
    where: str, tmp_path: Path
) -> None:
    own = "fsdp1" + where.removeprefix("fsdp1:plain")
    row = known_row(keys=[f"grad_parity/mismatch/{own}"])
    case = msgspec.structs.replace(large(), twins=(Twin(name="plain", checkpoints=()),))
    assert match(load(tmp_path, row), changed(where=where), case) == "a-known-one"
    whole = msgspec.structs.replace(
        large().plan, units=(Fsdp1Unit(path="", sharding="SHARD_GRAD_OP"),)
    )
    other = msgspec.structs.replace(case, twins=(Twin(name="plain", plan=whole),))
    assert match(load(tmp_path, row), changed(where=where), other) is None
    assert (
        match(load(tmp_path, row), changed(where=where.replace("plain", "plainer")), case) is None
    )


@pytest.mark.parametrize(
    "other",
    [
        {"finding": changed(where="fsdp1:grad2")},
        {"finding": changed(where="fsdp1")},
        {"finding": changed(symptom="crash")},
        {"finding": changed(invariant="param_parity")},
        {"finding": changed(message="something else")},
        {"case": small()},
        {"case": msgspec.structs.replace(large(), plan=small().plan, ties=())},
        {"torch": "2.14.0"},
        {"torch": "2.6.0"},
        {"torch": "no version"},
        {"torch": ""},
        {"backend": "nccl"},
    ],
)
def test_and_nothing_else(tmp_path: Path, other: dict[str, Any]) -> None:
    assert match(load(tmp_path, known_row()), **other) is None


def test_a_second_fault_beside_a_known_one_is_not_hidden(tmp_path: Path) -> None:
    known = load(tmp_path, known_row())
    findings = [MATCHING, changed(where="fsdp1:grad-twice"), changed(invariant="loss_parity")]
    assert [match(known, finding) for finding in findings] == ["a-known-one", None, None]


def test_a_star_stands_for_any_ending(tmp_path: Path) -> None:
    known = load(tmp_path, known_row(keys=["no_crash/crash/fsdp1:*", "x/y/fsdp1"]))
    assert match(known, changed(invariant="no_crash", symptom="crash", where="fsdp1:a@b"))
    assert not match(known, changed(invariant="no_crash", symptom="crash", where="fsdp2:a@b"))
    assert not match(known)


@pytest.mark.parametrize(
    ("spoil", "path", "reason"),
    [
        ({"id": "No Id"}, "$.known[1].id", "matching regex"),
        ({"id": "a-known-one"}, "$.known[1].id", "twice"),
        ({"keys": []}, "$.known[1].keys", ">= 1"),
        ({"keys": ["grad_parity"]}, "$.known[1].keys[0]", "matching regex"),
        ({"keys": ["grad_parity/mismatch/*"]}, "$.known[1].keys[0]", "matching regex"),
        ({"keys": ["grad_parity/*"]}, "$.known[1].keys[0]", "matching regex"),
        ({"keys": ["*"]}, "$.known[1].keys[0]", "matching regex"),
        ({"when": {}}, "$.known[1].when", ">= 1"),
        ({"when": {"api": []}}, "$.known[1].when[...]", ">= 1"),
        ({"when": {"api": "fsdp1"}}, "$.known[1].when[...]", "array"),
        ({"when": {"apy": ["fsdp1"]}}, "$.known[1].when", "no feature 'apy'"),
        ({"when": {"api": ["fsdp2"]}}, "$.known[1].when", "own case does not fit"),
        ({"message": "("}, "$.known[1].message", "no regular expression"),
        ({"message": "a{99999999999999999999}"}, "$.known[1].message", "no regular expression"),
        ({"message": "(" * 500}, "$.known[1].message", "no regular expression"),
        ({"message": ""}, "$.known[1].message", "any message"),
        ({"message": ".*"}, "$.known[1].message", "any message"),
        ({"torch": "2.7"}, "$.known[1].torch", "names no versions"),
        ({"backends": []}, "$.known[1].backends", ">= 1"),
        ({"reason": "because"}, "$.known[1].reason", ">= 20"),
        ({"link": "javascript:alert(1)"}, "$.known[1].link", "matching regex"),
        ({"date": "yesterday"}, "$.known[1].date", "matching regex"),
        ({"case": {}}, "$.known[1].case", "missing"),
        ({"case": {**as_document(large()), "seed": -1}}, "$.known[1].case.seed", ">= 0"),
        ({"note": "x"}, "$.known[1]", "unknown field"),
    ],
)
def test_a_broad_or_wrong_entry_is_refused(
    tmp_path: Path, spoil: dict[str, Any], path: str, reason: str
) -> None:
    with pytest.raises(CaseError) as caught:
        load(tmp_path, known_row(), {**known_row(id="another"), **spoil})
    assert caught.value.path == path
    assert str(caught.value).startswith(f"{tmp_path / 'known.json'}: {path}: ")
    assert reason in str(caught.value)


def test_the_ledger_names_what_was_not_met(tmp_path: Path) -> None:
    known = load(
        tmp_path,
        known_row(id="met"),
        known_row(id="not-met"),
        known_row(id="other-backend", backends=["nccl"]),
        known_row(id="other-torch", torch="<2.8"),
    )
    ledger = Ledger(known)
    ledger.count("met")
    assert ledger.silent(torch="2.13.0", backend="gloo") == ("not-met",)
    assert ledger.silent(torch="2.7.0", backend="nccl") == ("other-backend",)


def test_a_known_file_is_written_as_it_is_read(tmp_path: Path) -> None:
    known = load(tmp_path, known_row(), known_row(id="another"))
    (tmp_path / "again.json").write_bytes(known_document(known.entries))
    again = Known.load(tmp_path / "again.json")
    assert [entry.id for entry in again.entries] == ["a-known-one", "another"]
    assert again.entries[0].minimal() == large()
    assert known_document(again.entries) == known_document(known.entries)


def test_the_projects_own_file_is_sound() -> None:
    known = Known.load(REPOSITORY / "corpus" / "known.json")
    for entry in known.entries:
        own = features(entry.minimal())
        assert all(own[name] in values for name, values in entry.when.items()), entry.id

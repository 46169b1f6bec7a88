"""What ``fsdpfuzz replay --bisect`` says to git: bad, good, or that nobody can say."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import typer

from fsdpfuzz.case import digest
from fsdpfuzz.cli import main
from fsdpfuzz.cli._bisect import Answer, answer, bisected, telling_bisect
from fsdpfuzz.corpus import Entry, Found, write_entry
from fsdpfuzz.errors import MachineError
from fsdpfuzz.loop import Examined
from fsdpfuzz.verdict import Finding, Status, Verdict
from tests.misbehaviour import quick

SAVED = Finding(
    invariant="grad_parity",
    symptom="mismatch",
    api="fsdp2",
    quantity="grad",
    name="weight",
    observed="1.0",
    expected="0.5",
)
OTHER = msgspec.structs.replace(SAVED, invariant="output_parity")


def saved(finding: Finding | None = SAVED, key: str = SAVED.key) -> Entry:
    found = Found(
        key=key,
        message="",
        finding=finding,
        property="parity",
        torch="2.13.0",
        backend="gloo",
        world_size=2,
        date="2026-11-20",
        seed=0,
    )
    return Entry(case=quick(), found=found)


def examined(status: Status, *findings: Finding, unconfirmed: tuple[Finding, ...] = ()) -> Examined:
    return Examined(
        case=quick(),
        digest=digest(quick()),
        verdict=Verdict(status=status, findings=findings),
        known={finding.key: "some-known-defect" for finding in findings},
        rates={},
        observation=None,
        fresh=True,
        unconfirmed=unconfirmed,
    )


@pytest.mark.parametrize(
    ("entry", "seen", "expected"),
    [
        (saved(), examined("finding", SAVED), "bad"),
        (saved(), examined("finding", OTHER, SAVED), "bad"),
        (saved(), examined("passed", unconfirmed=(SAVED,)), "bad"),
        (saved(), examined("finding", OTHER), "untold"),
        (saved(), examined("passed"), "good"),
        (saved(), examined("rejected"), "good"),
        (saved(), examined("vacuous"), "untold"),
        (saved(), examined("harness error"), "untold"),
        (saved(), None, "untold"),
        (saved(None), examined("finding", SAVED), "bad"),
        (saved(None), examined("finding", OTHER), "untold"),
        (Entry(case=quick()), examined("finding", OTHER), "bad"),
        (Entry(case=quick()), examined("passed"), "good"),
    ],
)
def test_one_case(entry: Entry, seen: Examined | None, expected: Answer) -> None:
    assert answer(entry, seen) == expected


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        (["good", "good"], 0),
        (["good", "untold"], 125),
        (["untold", "bad", "good"], 1),
        ([], 125),
    ],
)
def test_several_cases(answers: list[Answer], code: int) -> None:
    assert bisected(answers) == code


@pytest.mark.parametrize(
    ("error", "code"),
    [(MachineError("no gloo"), 125), (RuntimeError("a bug"), 125), (typer.Exit(1), 1)],
)
def test_what_goes_wrong_is_never_bad(error: Exception, code: int) -> None:
    with pytest.raises(typer.Exit) as raised, telling_bisect():
        raise error
    assert raised.value.exit_code == code


def test_a_build_that_failed_is_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    case = tmp_path / "case.json"
    write_entry(case, saved())
    command = ["replay", str(case), "--python", str(tmp_path / "python")]
    assert main([*command, "--bisect"]) == 125
    assert "cannot say: --python: " in capsys.readouterr().err
    assert main(command) == 2

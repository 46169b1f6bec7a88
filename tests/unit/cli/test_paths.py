"""What is given for a path and cannot be one is refused by every command, before it does more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fsdpfuzz.cli import main

TAKE_A_PATH = (
    "run --output",
    "run --json",
    "run --junit",
    "run --known",
    "run --python",
    "run --against",
    "replay",
    "replay x.json --output",
    "repro",
    "repro x.json -o",
    "minimize",
    "minimize x.json -o",
    "explain",
    "new -o",
    "doctor --python",
    "check x.py --config",
    "corpus list",
    "corpus show",
    "corpus add",
    "corpus add x.json --to",
    "corpus prune",
    "corpus seeds",
    "corpus known add",
    "corpus known add x.json --known",
    "corpus known check --output",
    "corpus known list --known",
)
LONG = "x" * 300
"""No file system has such a name; to ask whether it is there is an error."""


@pytest.mark.parametrize("command", TAKE_A_PATH)
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("", "'' is no file or folder; '.' is the current folder"),
        (LONG, f"'{LONG}' cannot be looked up: File name too long"),
    ],
    ids=["nothing", "too long"],
)
def test_no_path_is_refused(
    command: str,
    given: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = command.split()
    assert main([*arguments, given]) == 2
    origin = arguments[-1] if arguments[-1].startswith("-") else "[A-Z]+"
    assert re.fullmatch(f"fsdpfuzz: {origin}: {re.escape(words)}\n", capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_a_variable_for_a_path_is_looked_up_alike(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FSDPFUZZ_KNOWN", LONG)
    assert main(["doctor"]) == 2
    assert capsys.readouterr().err.startswith(
        f"fsdpfuzz: environment variable FSDPFUZZ_KNOWN: '{LONG}' cannot be looked up: "
    )


def test_a_target_is_looked_up_alike(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{LONG}.py"]) == 2
    assert capsys.readouterr().err.startswith(
        f"fsdpfuzz: TARGET: '{LONG}.py' cannot be looked up: "
    )

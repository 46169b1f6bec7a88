"""Whatever a file holds, the commands that read it say in one line what is wrong, or accept it."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import NoReturn

import pytest

from fsdpfuzz.cli import _finding, main
from fsdpfuzz.corpus import Entry
from fsdpfuzz.errors import UsageError
from tests.acceptance.commands import PROGRAM, ROOT
from tests.unit.corpus.spoil import SPOILERS, Spoiler
from tests.unit.corpus.test_mutations import documents

EACH = 40
MOST_BYTES = 200 << 20
COMMANDS = {
    "show": ["corpus", "show"],
    "explain": ["explain"],
    "repro": ["repro"],
    "replay": ["replay", "--backend", "gloo"],
}


def not_found_again(_entry: Entry, path: Path, *_: object) -> NoReturn:
    raise UsageError(f"{path}: $.found: the finding does not come back")


def check_said(code: int, said: str, name: str) -> None:
    """What the program says of a wrong file, of which it must not run or print anything."""
    assert code == 2
    assert said.count("\n") == 1, said
    assert said.startswith("fsdpfuzz: ")
    assert name in said
    assert "$" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("command", ["show", "explain", "repro"])
def test_every_kind_of_wrong_file(
    command: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Of an old file the case would be run, with ranks.
    monkeypatch.setattr(_finding, "_found_again", not_found_again)
    rng = Random(command)
    bases = documents(tmp_path)
    path = tmp_path / "wrong.json"
    refused = 0
    for i in range(EACH * len(SPOILERS)):
        path.write_bytes(SPOILERS[i % len(SPOILERS)](rng, rng.choice(bases)))
        code = main([*COMMANDS[command], str(path)])
        out, said = capsys.readouterr()
        if code == 0:
            assert out
            continue
        refused += 1
        check_said(code, said, "wrong.json")
        assert out == ""
    assert refused > EACH * len(SPOILERS) // 2
    assert {file.name for file in tmp_path.iterdir()} == {"wrong.json", "document.json"}


def limit_memory() -> None:
    # Beyond what the program has anyway before it opens the file.
    most = 3 * MOST_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


@pytest.mark.parametrize("spoiler", SPOILERS, ids=lambda spoiler: spoiler.__name__)
def test_a_wrong_file_in_a_process_of_its_own(spoiler: Spoiler, tmp_path: Path) -> None:
    rng = Random(spoiler.__name__)
    bases = documents(tmp_path)
    path = tmp_path / "wrong.json"
    for _ in range(30):
        path.write_bytes(spoiler(rng, rng.choice(bases)))
        if main(["corpus", "show", str(path)]) == 2:
            break
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *COMMANDS["replay"], str(path)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=limit_memory,
    )
    check_said(done.returncode, done.stderr, "wrong.json")
    assert done.stdout == ""

"""``fsdpfuzz check``: a model of somebody's own, on real ranks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.acceptance.commands import ROOT
from tests.acceptance.commands import fsdpfuzz as command

OWN = ROOT / "tests/own"
PLANT = "benchmarks.faults.plants:fsdp2_summed_not_averaged"
PROGRAM = "import sys; from fsdpfuzz.cli import main; sys.exit(main())"
"""Drawing needs Hypothesis, which other commands must not import."""
GLOO = ("--backend", "gloo", "--known", str(ROOT / "corpus/known"))


def fsdpfuzz(*arguments: str | Path, cwd: Path) -> CompletedProcess[str]:
    return command(*arguments, cwd=cwd, program=PROGRAM)


def test_the_template_is_written_once_and_passes(tmp_path: Path) -> None:
    done = fsdpfuzz("check", "--init", "mymodel.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    again = fsdpfuzz("check", "--init", "mymodel.py", cwd=tmp_path)
    assert again.returncode == 2
    assert "is there already and stays as it is" in again.stderr
    done = fsdpfuzz(
        "check", "mymodel.py", *GLOO, "--max-examples", "3", "--seed", "1", cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"examples +3 *\n *passed +3", done.stdout), done.stdout


def test_a_decoder_is_trained_right(tmp_path: Path) -> None:
    done = fsdpfuzz(
        "check", OWN / "decoder.py", *GLOO, "--max-examples", "8", "--seed", "3", cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_fault_is_found_and_shown_by_a_script_that_imports_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text((OWN / "decoder.py").read_text())
    arguments = ("--api", "fsdp2", "--max-examples", "2", "--seed", "3", "--plant", PLANT)
    done = fsdpfuzz("check", "mine.py", *GLOO, *arguments, "--json", "run.json", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    result = json.loads((tmp_path / "run.json").read_text())
    found = next(f for f in result["findings"] if f["key"] == "grad_parity/mismatch/fsdp2")
    assert "(confirmed)" in done.stdout
    script = (tmp_path / found["repro"]).read_text()
    assert "from mine import batch as make_batch, model as make_model" in script
    assert "fully_shard(model" in script
    case = found["case"]
    alone = fsdpfuzz("replay", case, "--backend", "gloo", cwd=tmp_path)
    assert alone.returncode == 2
    assert "the code of mine.py" in alone.stderr
    named = ("--target", "mine.py")
    assert fsdpfuzz("replay", case, *named, "--backend", "gloo", cwd=tmp_path).returncode == 0
    (tmp_path / "mine.py").write_text(script.replace("import", "raise ValueError  # ", 1))
    other = fsdpfuzz("replay", case, *named, "--backend", "gloo", cwd=tmp_path)
    assert other.returncode == 2
    assert "mine.py" in other.stderr


def test_a_shard_that_parts_a_tie_is_told(tmp_path: Path) -> None:
    plain = fsdpfuzz("check", OWN / "split_tie.py", *GLOO, cwd=tmp_path)
    assert plain.returncode == 2
    assert "has shard(model, mesh): give --as-is, which" in plain.stderr
    done = fsdpfuzz(
        "check", OWN / "split_tie.py", "--as-is", *GLOO, "--max-examples", "2", cwd=tmp_path
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "embedding.weight and head.weight are one parameter" in done.stderr
    assert "FSDP needs both in one unit" in done.stderr
    assert "known as fsdp1-tie-across-units" in done.stdout
    assert "Put the modules that share a parameter into one unit." in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gone.py",), "there is no file 'gone.py'"),
        (("mine.py", "--as-is", "--anyhow"), "give one of them"),
        (("mine.py",), "no function batch() in mine.py"),
        (("--init", "my-model.py"), "give the name of a Python file"),
    ],
)
def test_what_cannot_be_checked(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def model(): return 3")
    done = fsdpfuzz("check", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1

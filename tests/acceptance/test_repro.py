"""``fsdpfuzz repro``."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

from fsdpfuzz.corpus import Entry, Found, Known, write_entry
from fsdpfuzz.invariants import judge
from fsdpfuzz.loop import default_known
from fsdpfuzz.ranks import Pool
from fsdpfuzz.spec import CaseSpec, pretty
from tests.acceptance.commands import fsdpfuzz
from tests.unit.show.samples import SMALL

SHOWN = ("fsdp1-kept-quiet-unit", "fsdp1-identity-unit", "fsdp2-recomputed-quiet-unit")


def save(path: Path, case: CaseSpec, key: str, message: str) -> None:
    found = Found(
        key=key,
        message=message,
        property="parity",
        torch="2.13.0",
        backend="gloo",
        world_size=case.world_size,
        date="2026-11-21",
        seed=3,
    )
    write_entry(path, Entry(case=case, found=found))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "case.json"
    message = "grad=1.5, but should be 0.5 within 1e-05 [0.weight, rank 0, program[1]]"
    save(path, SMALL, "grad_parity/mismatch/fsdp2:other", message)
    return path


def test_the_script_is_printed(saved: Path, tmp_path: Path) -> None:
    done = fsdpfuzz("repro", saved, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    imported = {
        name
        for node in ast.walk(ast.parse(done.stdout))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    outside = {name.split(".")[0] for name in imported} - {"torch"} - sys.stdlib_module_names
    assert outside == set()
    for part in (
        "torchrun --nproc-per-node 2 repro.py",
        "torch 2.13.0",
        "gloo",
        "0.5 within 1e-05",
    ):
        assert part in done.stdout


def test_the_script_is_written(saved: Path, tmp_path: Path) -> None:
    done = fsdpfuzz("repro", saved, "-o", "grad.py", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "torchrun --nproc-per-node 2 grad.py" in (tmp_path / "grad.py").read_text()


def test_issue_text_holds_the_script(saved: Path, tmp_path: Path) -> None:
    done = fsdpfuzz("repro", saved, "--issue", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("# FSDP")
    assert fsdpfuzz("repro", saved, cwd=tmp_path).stdout.strip() in done.stdout


def test_what_does_not_show_exits_with_0(saved: Path, tmp_path: Path) -> None:
    done = fsdpfuzz("repro", saved, "-o", "grad.py", "--verify", "--backend", "gloo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("not reproduced in ")


@pytest.mark.parametrize("name", SHOWN)
def test_what_shows_exits_with_1(name: str, tmp_path: Path) -> None:
    file = default_known()
    assert file is not None
    (entry,) = (entry for entry in Known.load(file).entries if entry.id == name)
    case = entry.minimal()
    with Pool(case.world_size, "gloo") as pool:
        finding = judge(case, pool.run(case)).findings[0]
    save(tmp_path / "case.json", case, finding.key, finding.message)
    done = fsdpfuzz("repro", "case.json", "--verify", "--backend", "gloo", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("reproduced in ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.json"], "missing.json"),
        (["broken.json"], "broken.json"),
        (["bare.json", "--issue"], "bare.json"),
        (["case.json", "-o", "no/such/folder.py"], "no/such"),
        (["case.json", "--backend", "mpi"], "mpi"),
    ],
)
def test_bad_input_is_named(arguments: list[str], said: str, saved: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"schema": 1, "case": ')
    (tmp_path / "bare.json").write_text(pretty(SMALL))
    done = fsdpfuzz("repro", *arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
    assert json.loads(saved.read_text())["schema"] == 1

"""``fsdpfuzz repro``."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

from fsdpfuzz.corpus import Entry, Found, Known, write_entry
from fsdpfuzz.invariants import judge
from fsdpfuzz.loop import default_known, installed_torch
from fsdpfuzz.pool import Pool
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
    script = done.stdout.partition("```python\n")[2].partition("\n```\n")[0]
    compile(script, "repro.py", "exec")
    bare = fsdpfuzz("repro", saved, cwd=tmp_path).stdout
    told = {line for line in script.splitlines() if line not in bare.splitlines()}
    assert len(told) == 1
    assert told.pop().startswith(f"Written on: torch {installed_torch()}, Python ")
    assert f"- script written on torch {installed_torch()}, Python " in done.stdout
    assert "- gloo, 2 ranks" in done.stdout


def test_issue_text_beside_a_file(saved: Path, tmp_path: Path) -> None:
    done = fsdpfuzz("repro", saved, "--issue", "-o", "grad.py", cwd=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "grad.py").read_text() in done.stdout


@pytest.mark.parametrize("arguments", [[], ["--issue"]])
def test_an_output_that_is_only_ascii(arguments: list[str], tmp_path: Path) -> None:
    save(
        tmp_path / "case.json", SMALL, "grad_parity/mismatch/fsdp2:other", "grad=\u03c0 in 2 \u00d7"
    )
    done = fsdpfuzz("repro", "case.json", *arguments, cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "grad=\\u03c0 in 2 \\xd7" in done.stdout


def test_the_program_lists_it(tmp_path: Path) -> None:
    done = fsdpfuzz("--help", cwd=tmp_path)
    assert "repro" in done.stdout


def test_what_does_not_show_exits_with_0(saved: Path, tmp_path: Path) -> None:
    done = fsdpfuzz("repro", saved, "-o", "grad.py", "--verify", "--backend", "gloo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("not reproduced in ")


def known_case(name: str) -> CaseSpec:
    file = default_known()
    assert file is not None
    (entry,) = (entry for entry in Known.load(file).entries if entry.id == name)
    return entry.minimal()


@pytest.mark.parametrize("name", SHOWN)
def test_what_shows_exits_with_1(name: str, tmp_path: Path) -> None:
    case = known_case(name)
    with Pool(case.world_size, "gloo") as pool:
        finding = judge(case, pool.run(case)).findings[0]
    save(tmp_path / "case.json", case, finding.key, finding.message)
    done = fsdpfuzz("repro", "case.json", "--verify", "--backend", "gloo", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("reproduced in ")


def test_a_script_that_ends_in_another_way_exits_with_3(tmp_path: Path) -> None:
    key = "no_crash/crash/fsdp1:ValueError@torch/nn.py:forward"
    message = "ValueError: not what it raises [case:backward[1]]"
    save(tmp_path / "case.json", known_case("fsdp1-identity-unit"), key, message)
    done = fsdpfuzz("repro", "case.json", "--verify", "--backend", "gloo", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("fsdpfuzz: the script failed otherwise: ")
    assert "expected to be in states" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_backend_that_is_not_here_exits_with_3(saved: Path, tmp_path: Path) -> None:
    done = fsdpfuzz(
        *("repro", saved, "-o", "grad.py", "--verify", "--backend", "nccl"),
        cwd=tmp_path,
        CUDA_VISIBLE_DEVICES="",
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("fsdpfuzz: nccl cannot run 2 ranks here: ")


def test_a_planted_fault_is_under_the_script(tmp_path: Path) -> None:
    key = "grad_parity/mismatch/fsdp2:other"
    save(tmp_path / "case.json", SMALL, key, "grad=1.5, but should be 0.5 within 1e-05 [weight]")
    plant = ("--plant", "tests.planted.units:second_unit_not_averaged")
    done = fsdpfuzz("repro", "case.json", *plant, "--verify", "--backend", "gloo", cwd=tmp_path)
    assert done.returncode == 1, done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.json"], "missing.json"),
        (["broken.json"], "broken.json"),
        (["bare.json", "--issue"], "bare.json"),
        (["bare.json", "--ablate"], "bare.json"),
        (["odd.json"], "odd.json: $.found.key"),
        (["case.json", "-o", "no/such/folder.py"], "no/such"),
        (["case.json", "-o", "."], "'.' is a folder"),
        (["case.json", "-o", "/proc/nothing.py"], "/proc"),
        (["case.json", "--backend", "mpi"], "mpi"),
    ],
)
def test_bad_input_is_named(arguments: list[str], said: str, saved: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"schema": 1, "case": ')
    (tmp_path / "bare.json").write_text(pretty(SMALL))
    save(tmp_path / "odd.json", SMALL, "grad_parity/strange/fsdp2", "odd")
    done = fsdpfuzz("repro", *arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
    assert json.loads(saved.read_text())["schema"] == 1

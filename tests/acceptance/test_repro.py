"""``fsdpfuzz repro``."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

import msgspec
import pytest

from fsdpfuzz.case import CaseSpec, pretty
from fsdpfuzz.case.operations import OptimState
from fsdpfuzz.corpus import Entry, Found, write_entry
from fsdpfuzz.invariants import judge
from fsdpfuzz.known import Known
from fsdpfuzz.loop import default_known, installed_torch
from fsdpfuzz.pool import Pool
from fsdpfuzz.verdict import Failure, Finding
from tests.acceptance.commands import fsdpfuzz
from tests.unit.show.samples import SMALL

SHOWN = ("fsdp1-kept-quiet-unit", "fsdp1-identity-unit", "fsdp2-recomputed-quiet-unit")


GRAD = Finding(
    invariant="grad_parity",
    symptom="mismatch",
    api="fsdp2",
    detail="other",
    op=1,
    operation="backward",
    quantity="grad",
    name="1.weight",
    unit="",
    ranks=(0,),
    world_size=2,
    observed="1.5",
    expected="0.5",
    allowed=1e-5,
)
CRASH = Finding(
    invariant="no_crash",
    symptom="crash",
    api="fsdp1",
    kind="ValueError@torch/nn.py:forward",
    op=1,
    operation="backward",
    failure=Failure(type="ValueError", text="not what it raises", place="torch/nn.py:forward"),
)


def save(path: Path, case: CaseSpec, finding: Finding, *, old: bool = False) -> None:
    """The case with its finding; an ``old`` file has key and message alone."""
    found = Found(
        key=finding.key,
        message=finding.message,
        property="parity",
        torch="2.13.0",
        backend="gloo",
        world_size=case.world_size,
        date="2026-11-21",
        seed=3,
        finding=None if old else finding,
    )
    write_entry(path, Entry(case=case, found=found))


def changed(finding: Finding, **fields: object) -> Finding:
    return msgspec.structs.replace(finding, **fields)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "case.json"
    save(path, SMALL, GRAD)
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
        "PyTorch version: 2.13.0",
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
    told = [line for line in script.splitlines() if line not in bare.splitlines()]
    # torch itself also names the build, as in 2.15.0+cu132.
    version = rf"PyTorch version: {re.escape(installed_torch())}(\+\w+)?, CUDA used to "
    assert re.match(f"Written on: {version}", told[0])
    assert len(told) <= 3
    assert re.search(f"- script written on {version}", done.stdout)
    assert "- gloo, 2 ranks" in done.stdout


def test_the_issue_of_a_known_defect_says_that_it_is_known(tmp_path: Path) -> None:
    """The file of one is a case with its finding: no other folder has to explain it."""
    folder = default_known()
    assert folder is not None
    defects = Known.load(folder).defects
    name = next(name for name, defect in defects.items() if defect.link)
    linked = defects[name]
    (tmp_path / "none").mkdir()
    done = fsdpfuzz(
        "repro", folder.resolve() / f"{name}.json", "--issue", "--known", "none", cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("# FSDP")
    assert lines[2] == f"> This is known to fsdpfuzz as {name}: {linked.title}, {linked.link}"
    assert lines[4] == f"> {linked.reason}"
    assert "```python" in done.stdout


def test_the_script_of_a_known_defect_shows_its_finding(tmp_path: Path) -> None:
    folder = default_known()
    assert folder is not None
    done = fsdpfuzz("repro", folder.resolve() / "fsdp2-repeated-reentrant.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    expected = Known.load(folder).defects["fsdp2-repeated-reentrant"].finding.expected
    assert expected in done.stdout


def test_issue_text_beside_a_file(saved: Path, tmp_path: Path) -> None:
    done = fsdpfuzz("repro", saved, "--issue", "-o", "grad.py", cwd=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "grad.py").read_text() in done.stdout


def test_a_finding_about_collectives_has_a_script(tmp_path: Path) -> None:
    words = {"invariant": "collectives", "detail": "", "quantity": "collectives"}
    finding = changed(GRAD, **words, name="all_gather float32 4", observed="2", expected="1")
    save(tmp_path / "case.json", SMALL, finding)
    done = fsdpfuzz("repro", "case.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert 'issued.count("all_gather float32 4")' in done.stdout


def test_a_finding_about_an_entry_of_the_optimizer_s_state_has_a_script(tmp_path: Path) -> None:
    case = msgspec.structs.replace(
        SMALL, checkpoints=(), program=(*SMALL.program[:3], OptimState())
    )
    words = {"invariant": "optim_state", "quantity": "result", "operation": "optim_state"}
    finding = changed(GRAD, **words, op=3, name="optim_state[1.weight].momentum_buffer")
    save(tmp_path / "case.json", case, finding)
    done = fsdpfuzz("repro", "case.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert '"momentum_buffer"' in done.stdout
    assert "set_optimizer_state_dict" not in done.stdout


def test_a_script_loads_the_state_that_it_saves_again(tmp_path: Path) -> None:
    """What is wrong may have come about by an earlier load; the last one has no part in it."""
    program = (*SMALL.program[:3], OptimState(), OptimState())
    case = msgspec.structs.replace(SMALL, checkpoints=(), program=program)
    words = {"invariant": "optim_state", "quantity": "result", "operation": "optim_state"}
    finding = changed(GRAD, **words, op=4, name="optim_state[1.weight].momentum_buffer")
    save(tmp_path / "case.json", case, finding)
    done = fsdpfuzz("repro", "case.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "set_optimizer_state_dict(" in done.stdout


@pytest.mark.parametrize("arguments", [[], ["--issue"]])
def test_an_output_that_is_only_ascii(arguments: list[str], tmp_path: Path) -> None:
    save(tmp_path / "case.json", SMALL, changed(GRAD, observed="\u03c0 in 2 \u00d7"))
    done = fsdpfuzz("repro", "case.json", *arguments, cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u03c0 in 2 \\xd7" in done.stdout


def test_the_program_lists_it(tmp_path: Path) -> None:
    done = fsdpfuzz("--help", cwd=tmp_path)
    assert "repro" in done.stdout


def test_what_does_not_show_exits_with_0(saved: Path, tmp_path: Path) -> None:
    done = fsdpfuzz("repro", saved, "-o", "grad.py", "--verify", "--backend", "gloo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("not reproduced in ")


def known_case(name: str) -> CaseSpec:
    folder = default_known()
    assert folder is not None
    return Known.load(folder).minimal(name)


def shown_by(case: CaseSpec) -> Finding:
    with Pool(case.world_size, "gloo") as pool:
        return judge(case, pool.run(case)).findings[0]


@pytest.mark.parametrize("name", SHOWN)
def test_what_shows_exits_with_1(name: str, tmp_path: Path) -> None:
    case = known_case(name)
    save(tmp_path / "case.json", case, shown_by(case))
    done = fsdpfuzz("repro", "case.json", "--verify", "--backend", "gloo", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("reproduced in ")


def test_a_script_that_ends_in_another_way_exits_with_3(tmp_path: Path) -> None:
    save(tmp_path / "case.json", known_case("fsdp1-identity-unit"), CRASH)
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


def test_an_injected_fault_is_under_the_script(tmp_path: Path) -> None:
    save(tmp_path / "case.json", SMALL, GRAD)
    injection = ("--inject", "tests.injected.units:second_unit_not_averaged")
    done = fsdpfuzz("repro", "case.json", *injection, "--verify", "--backend", "gloo", cwd=tmp_path)
    assert done.returncode == 1, done.stderr


def test_an_old_file_is_run_again_to_find_its_finding(tmp_path: Path) -> None:
    case = known_case("fsdp1-identity-unit")
    finding = shown_by(case)
    save(tmp_path / "old.json", case, finding, old=True)
    save(tmp_path / "new.json", case, finding)
    old = fsdpfuzz("repro", "old.json", "--backend", "gloo", cwd=tmp_path)
    assert old.returncode == 0, old.stderr
    assert old.stdout == fsdpfuzz("repro", "new.json", cwd=tmp_path).stdout
    assert {path.name for path in tmp_path.iterdir()} == {"old.json", "new.json"}


def test_an_old_file_whose_finding_does_not_come_back_says_so(tmp_path: Path) -> None:
    save(tmp_path / "old.json", SMALL, GRAD, old=True)
    done = fsdpfuzz("repro", "old.json", "--backend", "gloo", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("fsdpfuzz: old.json: $.found: only the text of its finding is saved")
    assert "the case shows nothing, not grad_parity/mismatch/fsdp2" in line
    assert "remove $.found" in line


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("invariant", "novel_parity"),
        ("api", "fsdp1"),
        ("variant", "no such variant"),
        ("op", 99),
        ("name", "weight; import os"),
        ("name", "weight + __import__('os').getpid()"),
        ("unit", "nowhere"),
        ("quantity", "grad and print('here')"),
        ("name", "no_such_parameter"),
    ],
)
def test_a_finding_that_does_not_fit_its_case_is_refused(
    field: str, value: object, tmp_path: Path
) -> None:
    """What a file says comes to stand in a script, which is then run."""
    save(tmp_path / "case.json", SMALL, changed(GRAD, **{field: value}))
    done = fsdpfuzz("repro", "case.json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"fsdpfuzz: case.json: $.found.finding.{field}: ")
    assert repr(value) in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.json"], "missing.json"),
        (["broken.json"], "broken.json"),
        (["bare.json", "--issue"], "bare.json"),
        (["bare.json", "--ablate"], "bare.json"),
        (["odd.json"], "odd.json: $.found.finding.symptom"),
        (["case.json", "-o", "no/such/folder.py"], "no/such"),
        (["case.json", "-o", "."], "'.' is a folder"),
        (["case.json", "-o", "/proc/nothing.py"], "/proc"),
        (["case.json", "--backend", "mpi"], "mpi"),
    ],
)
def test_bad_input_is_named(arguments: list[str], said: str, saved: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"schema": 1, "case": ')
    (tmp_path / "bare.json").write_text(pretty(SMALL))
    text = saved.read_text().replace('"symptom": "mismatch"', '"symptom": "strange"')
    (tmp_path / "odd.json").write_text(text)
    done = fsdpfuzz("repro", *arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
    assert json.loads(saved.read_text())["schema"] == 1

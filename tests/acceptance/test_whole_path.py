"""From the command to the ranks and back, with real ranks on gloo."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Sequential,
    Step,
    pretty,
)
from fsdpfuzz.corpus import read_entry

ROOT = Path(__file__).resolve().parents[2]

INJECTION = """
import msgspec
from fsdpfuzz.ranks import _worker

def lies_about_two_units(env):
    honest = _worker.run_case

    def run_case(case, env):
        report = honest(case, env)
        trains = any(op.kind() == "backward" for op in case.program)
        if len(case.plan.units) < 2 or not trains or not report.subjects:
            return report
        subject = msgspec.structs.replace(report.subjects[0], frozen_with_grad=("injected",))
        return msgspec.structs.replace(report, subjects=(subject,))

    _worker.run_case = run_case
"""

TWO_UNITS = CaseSpec(
    world_size=2,
    model=Sequential(children=(Linear(out=3), Linear(out=2))),
    inputs=Dense(width=3),
    plan=Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="0"))),
    program=(Forward(), Backward(), Step()),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "injected.py").write_text(INJECTION)
    return tmp_path


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def environment(folder: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name != "CI"}
    return {**inherited, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}


def test_an_injected_fault_is_found_shrunk_kept_and_replayed(folder: Path) -> None:
    run = ("-m", "fsdpfuzz", "run", "--seed", "1", "--backend", "gloo", "--max-examples", "16")
    injection = ("--inject", "injected:lies_about_two_units")
    done = command(folder, *run, *injection, "--json", "result.json", "--api", "fsdp2")
    assert done.returncode == 1, done.stderr
    result = json.loads((folder / "result.json").read_text())
    (found,) = [found for found in result["findings"] if "injected" in found["message"]]
    assert result["examples"] == 16
    minimal = read_entry(folder / found["case"])
    assert len(minimal.case.plan.units) == 2
    assert minimal.case.program == (Forward(), Backward())
    assert minimal.found is not None
    assert minimal.found.shrink_steps > 0

    replay = ("-m", "fsdpfuzz", "replay", found["case"], "--backend", "gloo")
    fails = command(folder, *replay, *injection)
    assert fails.returncode == 1
    assert f"still fails: {found['key']}" in fails.stdout
    passes = command(folder, *replay)
    assert passes.returncode == 0, passes.stdout + passes.stderr
    assert f"passed, no longer {found['key']}" in passes.stdout


def test_replay_names_every_bad_file_and_runs_nothing(folder: Path) -> None:
    cases = folder / "cases"
    cases.mkdir()
    (cases / "good.json").write_text(pretty(TWO_UNITS))
    (cases / "cut.json").write_text(pretty(TWO_UNITS)[:40])
    (cases / "wrong.json").write_text(
        pretty(TWO_UNITS).replace('"world_size": 2', '"world_size": 0')
    )
    done = command(folder, "-m", "fsdpfuzz", "replay", "cases")
    assert done.returncode == 2
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("fsdpfuzz: cases/cut.json: $: not valid JSON")
    assert lines[1].startswith("fsdpfuzz: cases/wrong.json: $.world_size:")
    assert lines[2] == "fsdpfuzz: PATH: 2 of 3 files hold no case; nothing was run"


def test_the_properties_and_saved_cases_run_under_pytest(folder: Path) -> None:
    corpus = folder / "corpus"
    corpus.mkdir()
    (corpus / "two-units.json").write_text(pretty(TWO_UNITS))
    (corpus / "package.json").write_text('{"name": "of another project"}')
    plugin = importlib.metadata.entry_points(group="pytest11", name="fsdpfuzz")
    load = () if plugin else ("-p", "fsdpfuzz.plugin")
    pytest_run = ("-m", "pytest", *load, "-p", "no:cacheprovider", "--fsdpfuzz-backend=gloo", "-v")
    done = command(
        folder,
        *pytest_run,
        "--hypothesis-profile=fsdpfuzz-smoke",
        "--pyargs",
        "fsdpfuzz.properties",
        "-k",
        "test_parity",
    )
    assert done.returncode == 0, done.stdout
    done = command(folder, *pytest_run, "corpus", "-n", "2")
    assert done.returncode == 0, done.stdout
    assert "corpus/two-units.json::replay" in done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.alone
def test_a_killed_run_leaves_no_rank_behind(folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "fsdpfuzz", "run", "--max-examples", "5000", "--backend", "gloo"],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        digests = folder / ".fsdpfuzz/runs/latest/digests.txt"
        wait_until(lambda: digests.exists() and digests.read_text().count("\n") >= 3)
        # Forkserver and two ranks: between two cases a pool may just be given fresh ranks.
        wait_until(lambda: len(descendants(process.pid)) >= 3)
        children = descendants(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 143
        wait_until(lambda: not [pid for pid in children if Path(f"/proc/{pid}").exists()])
    finally:
        process.kill()


def descendants(pid: int) -> list[int]:
    """The processes below ``pid``, by /proc."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(text.rpartition(")")[2].split()[1])
    found, new = [], [pid]
    while new:
        new = [child for child, parent in parents.items() if parent in new]
        found += new
    return found


def wait_until(condition: object, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)

"""The command line in processes of its own. The ranks are stand-ins."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = f"""
import os, sys, time
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
import fsdpfuzz.loop, fsdpfuzz.loop._session
from fsdpfuzz.errors import MachineError
from fsdpfuzz.loop import PROPERTIES, Ports, Property, Resolved
from tests.unit.loop.standins import Bench, FakeKnown, finding, outs_of, toy_cases, verdict_of

mode = os.environ.get("MODE", "")
bench = Bench(Path("kept"))
PROPERTIES["parity"] = Property(
    name="parity", about="", strategy=lambda scope: toy_cases(scope.world_sizes)
)

def judge(case, observation):
    return verdict_of(*[finding("big")] * (mode in ("fault", "known") and max(outs_of(case)) > 100))

def slow(case):
    if mode == "slow":
        time.sleep(0.02)

def machine(backend, sizes):
    if mode == "no-gpu":
        raise MachineError("nccl needs 2 GPUs, but there are 0")
    return Resolved(backend="gloo", world_sizes=sizes, torch="9.9.9")

bench.judge, bench.before = judge, slow
bench.known = FakeKnown(lambda case, found: "K1" if mode == "known" else None)
fsdpfuzz.loop.resolve_machine = machine
fsdpfuzz.loop._session.real_ports = lambda settings: Ports(
    make_pool=bench.pool, judge=judge, archive=bench.archive, known=bench.known
)
from fsdpfuzz.cli import main
code = main()
print("pools closed", [pool.closed for pool in bench.pools])
sys.exit(code)
"""


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    (tmp_path / "program.py").write_text(PROGRAM)
    return [sys.executable, str(tmp_path / "program.py")]


def call(program: list[str], *arguments: str, mode: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*program, *arguments],
        cwd=Path(program[1]).parent,
        env={**os.environ, "MODE": mode},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def document(program: list[str]) -> dict[str, Any]:
    loaded = json.loads((Path(program[1]).parent / "result.json").read_text())
    assert isinstance(loaded, dict)
    return loaded


def test_a_clean_run(program: list[str]) -> None:
    done = call(program, "run", "--max-examples", "60", "--seed", "3", "--json", "result.json")
    assert done.returncode == 0, done.stderr
    result = document(program)
    assert (result["examples"], result["passed"], result["seed"]) == (60, 60, 3)
    assert (result["torch"], result["world_size"], result["findings"]) == ("9.9.9", 2, [])
    assert re.search(r"examples +60\b", done.stdout)
    assert done.stderr.startswith("fsdpfuzz: torch 9.9.9, gloo, 2 ranks, profile dev, seed 3,")
    assert "pools closed [True]" in done.stdout


def test_a_run_with_a_finding(program: list[str]) -> None:
    done = call(
        program, "run", "--max-examples", "60", "--seed", "3", "--json", "result.json", mode="fault"
    )
    assert done.returncode == 1
    (found,) = document(program)["findings"]
    assert found["key"] == "big/mismatch/fsdp2"
    assert found["case"].startswith("kept/big-")
    assert found["examples_to_find"] >= 1
    assert "big/mismatch/fsdp2: shrunk, " in done.stderr
    assert "Falsifying" not in done.stdout + done.stderr


def test_a_known_finding_fails_only_a_strict_run(program: list[str]) -> None:
    arguments = ("run", "--profile", "smoke", "--seed", "3", "--json", "result.json")
    assert call(program, *arguments, mode="known").returncode == 0
    assert [found["known"] for found in document(program)["findings"]] == ["K1"]
    assert call(program, *arguments, "--strict", mode="known").returncode == 1


def test_the_seed_decides_on_the_cases(program: list[str]) -> None:
    digests: list[str] = []
    for seed in ("3", "3", "4"):
        output = f"out{len(digests)}"
        arguments = ("run", "--max-examples", "70", "--seed", seed, "--output", output)
        assert call(program, *arguments).returncode == 0
        digests.append((Path(program[1]).parent / output / "digests.txt").read_text())
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]
    assert digests[0].count("\n") == 70


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--profile", "devv"], "--profile: there is no profile 'devv'; choose one of"),
        (["run", "tpy"], "PROPERTY: there is no property 'tpy'; those that exist: parity"),
        (["run", "--seed", "x"], "--seed: 'x' is not a whole number from 0 to"),
        (["run", "--seed", "-1"], "--seed: '-1' is not a whole number"),
        (["run", "--max-examples", "0"], "--max-examples: '0' is not a whole number from 1 to"),
        (["run", "--world-size", "9"], "--world-size: '9' is not a whole number from 1 to 8"),
        (["run", "--backend", "mpi"], "--backend: 'mpi' is not one of auto, gloo, nccl"),
        (["run", "--api", "fsdp3"], "--api: 'fsdp3' is not one of fsdp1, fsdp2, both"),
        (["run", "--json", "no/such/x.json"], "--json: there is no folder 'no/such'"),
        (["run", "--known", "none.json"], "--known: there is no file 'none.json'"),
        (["run", "--output", "program.py"], "--output: the folder 'program.py' cannot be made"),
        (["run", "--plant", "x"], "--plant: 'x' is not MODULE:FUNCTION"),
        (["run", "--no-such"], "No such option: --no-such"),
        (["dance"], "No such command 'dance'"),
    ],
)
def test_bad_usage_is_one_line(program: list[str], arguments: list[str], message: str) -> None:
    done = call(program, *arguments)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"fsdpfuzz: {message}")


def test_a_machine_that_cannot_run_it(program: list[str]) -> None:
    done = call(program, "run", mode="no-gpu")
    assert done.returncode == 3
    assert done.stderr == "fsdpfuzz: nccl needs 2 GPUs, but there are 0\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_in_good_order(program: list[str], number: int, code: int) -> None:
    folder = Path(program[1]).parent
    with subprocess.Popen(
        [*program, "run", "--max-examples", "5000", "--json", "result.json"],
        cwd=folder,
        env={**os.environ, "MODE": "slow"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        digests = folder / ".fsdpfuzz" / "digests.txt"
        wait_for(lambda: digests.exists() and digests.read_text().count("\n") >= 5)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == code
    assert 5 <= document(program)["examples"] < 5000
    assert f"ended early by {signal.Signals(number).name}" in stderr
    assert "pools closed [True]" in stdout
    assert "Traceback" not in stderr


def test_a_terminal_gets_a_live_line(program: list[str]) -> None:
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [*program, "run", "--max-examples", "60"],
        cwd=Path(program[1]).parent,
        env={**os.environ, "MODE": "slow", "TERM": "xterm", "COLUMNS": "120"},
        stdout=subprocess.DEVNULL,
        stderr=terminal,
    )
    os.close(terminal)
    seen = read_until_closed(controller)
    assert process.wait(timeout=20) == 0
    assert len(re.findall(r"\d+/60 examples, [\d.]+/s, findings 0 new 0 known", seen)) > 3


def read_until_closed(controller: int) -> str:
    data = b""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if select.select([controller], [], [], 0.2)[0]:
            try:
                data += os.read(controller, 65536)
            except OSError:
                break
    os.close(controller)
    return data.decode(errors="replace")


def wait_for(condition: Any, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_help_of_the_program_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fsdpfuzz", "--help"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(command in done.stdout for command in ("run", "replay", "version"))

"""The command line in processes of its own. The ranks are stand-ins."""

from __future__ import annotations

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

from tests.acceptance.standin_program import ROOT, call, document, runs, started
from tests.signals import usual_signals


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
    (case,) = (runs(program)[0] / "failures").iterdir()
    assert Path(program[1]).parent / found["case"] == case
    assert found["finding"]["invariant"] == "big"
    assert found["examples_to_find"] >= 1
    assert "big/mismatch/fsdp2: shrunk, " in done.stderr
    assert "Falsifying" not in done.stdout + done.stderr


def test_what_one_cause_shows_as_is_told_together(program: list[str]) -> None:
    done = call(
        program, "run", "--max-examples", "60", "--seed", "3", "--json", "result.json", mode="two"
    )
    assert done.returncode == 1
    (found,) = document(program)["findings"]
    assert (found["key"], found["also"]) == ("after/mismatch/fsdp2", ["big/mismatch/fsdp2"])
    assert "big/mismatch/fsdp2: the same cause as after/mismatch/fsdp2" in done.stderr
    assert re.search(r"findings, new +1\b", done.stdout)
    assert "  also   big/mismatch/fsdp2" in done.stdout
    report = (Path(program[1]).parent / ".fsdpfuzz/runs/latest/report.html").read_text()
    assert "1 new finding" in report


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
        digests.append((Path(program[1]).parent / output / "runs/latest/digests.txt").read_text())
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
        (["run", "--known", "none"], "--known: there is no file or folder 'none'"),
        (["run", "--output", "program.py"], "--output: the folder 'program.py' cannot be made"),
        (["run", "--inject", "x"], "--inject: 'x' is not MODULE:FUNCTION"),
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


@pytest.mark.alone
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_a_run_in_good_order(program: list[str], number: int, code: int) -> None:
    folder = Path(program[1]).parent
    arguments = ("run", "--max-examples", "5000", "--json", "result.json")
    with started(program, *arguments, mode="slow") as process:
        digests = folder / ".fsdpfuzz/runs/latest/digests.txt"
        wait_for(lambda: digests.exists() and digests.read_text().count("\n") >= 5)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == code
    assert 5 <= document(program)["examples"] < 5000
    assert f"ended early by {signal.Signals(number).name}" in stderr
    assert "pools closed [True]" in stdout
    assert "Traceback" not in stderr


def test_the_drills_do_not_depend_on_who_started_them() -> None:
    show = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        done = subprocess.run(
            [sys.executable, "-c", show],
            capture_output=True,
            text=True,
            check=True,
            preexec_fn=usual_signals,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.stdout == "True\n"


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


@pytest.mark.parametrize("group", [[], ["corpus"], ["corpus", "known"]])
def test_help_cuts_no_sentence_off(group: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from fsdpfuzz.cli import main

    assert main([*group, "--help"]) == 0
    said = capsys.readouterr().out
    assert "..." not in said.partition("Commands:")[2]
    assert len(said.partition("Commands:")[2].splitlines()) > 3

"""Runs side by side that are one run: ``fsdpfuzz run --jobs N``. The ranks are stand-ins."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpfuzz.corpus import read_entry
from tests.acceptance.standin_program import call, document, runs, started

RUN = ("run", "--seed", "3", "--json", "result.json")


def wait_for(condition: Callable[[], object], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def outputs(program: list[str]) -> list[str]:
    """What each job printed."""
    return [path.read_text() for path in sorted(runs(program)[-1].glob("jobs/*/output.txt"))]


def digests(program: list[str]) -> list[str]:
    return (runs(program)[-1] / "digests.txt").read_text().split()


def jobs_begun(program: list[str]) -> int:
    """How many jobs have run some cases."""
    folder = Path(program[1]).parent / ".fsdpfuzz/runs/latest"
    return sum(path.read_text().count("\n") >= 3 for path in folder.glob("jobs/*/digests.txt"))


def test_jobs_share_the_examples_and_are_one_run(program: list[str]) -> None:
    done = call(program, *RUN, "--max-examples", "61", "--jobs", "3")
    assert done.returncode == 0, done.stderr
    result = document(program)
    assert (result["examples"], result["passed"], result["seed"]) == (61, 61, 3)
    assert [job["examples"] for job in result["jobs"]] == [21, 20, 20]
    assert len({job["seed"] for job in result["jobs"]}) == 3
    assert done.stderr.startswith("fsdpfuzz: torch 9.9.9, gloo, 3 jobs, 2 ranks, profile dev")
    assert re.search(r"examples +61\b", done.stdout)
    assert len(digests(program)) == 61
    assert "2 ranks, 3 jobs" in (runs(program)[0] / "report.html").read_text()
    assert all("pools closed [True]" in text for text in outputs(program))


def test_the_rest_of_the_examples_goes_to_whoever_is_done_first(program: list[str]) -> None:
    done = call(program, *RUN, "--max-examples", "160", "--jobs", "2", mode="one-is-slow")
    assert done.returncode == 0, done.stderr
    assert document(program)["examples"] == 160
    slow, quick = sorted(job["examples"] for job in document(program)["jobs"])
    assert (slow, quick) == (60, 100)


def test_the_seed_decides_on_the_cases_of_all_jobs(program: list[str]) -> None:
    drawn = []
    for _ in range(2):
        assert call(program, *RUN, "--max-examples", "120", "--jobs", "2").returncode == 0
        drawn.append(sorted(digests(program)))
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == 120


def test_what_every_job_meets_is_one_finding(program: list[str]) -> None:
    done = call(program, *RUN, "--max-examples", "90", "--jobs", "3", mode="two")
    assert done.returncode == 1, done.stderr
    (found,) = document(program)["findings"]
    assert {found["key"], *found["also"]} == {"after/mismatch/fsdp2", "big/mismatch/fsdp2"}
    (case,) = (runs(program)[0] / "failures").iterdir()
    assert Path(program[1]).parent / found["case"] == case
    assert read_entry(case).found is not None
    assert done.stderr.count(": shrunk, ") == 1
    assert re.search(r"findings, new +1\b", done.stdout)


def test_a_job_that_dies_is_a_harness_error(program: list[str]) -> None:
    done = call(program, *RUN, "--max-examples", "90", "--jobs", "3", mode="dies")
    assert done.returncode == 1
    result = document(program)
    assert [found["key"] for found in result["findings"]] == ["big/mismatch/fsdp2"]
    assert result["harness_errors"] == 1
    (dead,) = [job for job in result["jobs"] if job["failure"]]
    assert dead["failure"] == "exit code 9: such is life"
    assert 60 <= result["examples"] < 90
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("harness error")]
    assert f"job {dead['job']} ended after {dead['examples']} of 30 examples: exit code 9" in line


def test_where_fsdpfuzz_breaks_a_promise_to_itself_a_job_leaves_the_traceback(
    program: list[str],
) -> None:
    done = call(program, *RUN, "--max-examples", "90", "--jobs", "3", mode="breaks")
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("harness error")]
    assert "examples: a promise to itself; " in line
    output = Path(program[1]).parent / line.rpartition("; ")[2]
    assert output.read_text().count("ContractError: a promise to itself") == 1
    assert "Traceback" in output.read_text()


def test_a_campaign_of_which_no_job_is_left_fails(program: list[str]) -> None:
    Path(program[1]).write_text(
        "import os, sys\n"
        + Path(program[1])
        .read_text()
        .replace(
            'if sys.argv[1:2] == ["--job"]:', 'if sys.argv[1:2] == ["--job"]:\n    sys.exit(7)'
        )
    )
    done = call(program, *RUN, "--max-examples", "60", "--jobs", "2")
    assert done.returncode == 3
    assert document(program)["harness_errors"] == 2


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_all_jobs_in_good_order(program: list[str], number: int, code: int) -> None:
    arguments = (*RUN, "--max-examples", "5000", "--jobs", "2")
    with started(program, *arguments, mode="slow") as process:
        wait_for(lambda: jobs_begun(program) == 2)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == code, stderr
    assert 6 <= document(program)["examples"] < 5000
    assert stderr.count(f"ended early by {signal.Signals(number).name}") == 1
    assert "Traceback" not in stderr + "".join(outputs(program))
    assert all("pools closed [True]" in text for text in outputs(program))
    assert 'name="fsdpfuzz-refresh"' not in (runs(program)[0] / "report.html").read_text()
    assert re.search(r"harness errors +0\b", stdout)


def test_a_signal_in_the_middle_of_a_reduction_keeps_what_was_found(program: list[str]) -> None:
    arguments = (*RUN, "--max-examples", "5000", "--jobs", "2")
    report = Path(program[1]).parent / ".fsdpfuzz/runs/latest/report.html"
    with started(program, *arguments, mode="stuck") as process:
        wait_for(lambda: report.exists() and "big/" in report.read_text())
        process.send_signal(signal.SIGINT)
        stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.search(r"findings, new +1\b", stdout)
    assert [found["key"] for found in document(program)["findings"]] == ["big/mismatch/fsdp2"]


def test_jobs_end_with_a_campaign_that_is_killed(program: list[str]) -> None:
    with started(program, *RUN, "--max-examples", "5000", "--jobs", "2", mode="slow") as process:
        wait_for(lambda: jobs_begun(program) == 2)
        process.kill()
        process.communicate(timeout=60)
    wait_for(lambda: all("pools closed [True]" in text for text in outputs(program)))


def test_both_backends_side_by_side(program: list[str]) -> None:
    done = call(program, *RUN, "--max-examples", "30", "--backend", "all", "--jobs", "3")
    assert done.returncode == 0, done.stderr
    result = document(program)
    assert [job["backend"] for job in result["jobs"]] == ["gloo", "nccl", "nccl"]
    assert result["backend"] == "gloo+nccl"
    assert call(program, *RUN, "--max-examples", "30", "--backend", "all").returncode == 0
    assert [job["backend"] for job in document(program)["jobs"]] == ["gloo", "nccl"]


def test_as_many_jobs_as_do_well_here(program: list[str]) -> None:
    assert call(program, *RUN, "--max-examples", "10", "--jobs", "auto").returncode == 0
    assert len(document(program)["jobs"]) == 2
    assert call(program, *RUN, "--max-examples", "1", "--jobs", "auto").returncode == 0
    assert len(document(program)["jobs"]) == 1, "no job without an example"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--jobs", "0"], "--jobs: '0' is not a whole number from 1 to 256"),
        (["--jobs", "many"], "--jobs: 'many' is not auto or a whole number from 1 to 256"),
        (["--jobs", "1", "--backend", "all"], "--jobs: '1' is too few for --backend all; give 2"),
    ],
)
def test_bad_numbers_of_jobs(program: list[str], arguments: list[str], message: str) -> None:
    done = call(program, "run", *arguments)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"fsdpfuzz: {message}")

"""What a run leaves and prints, for people and for other programs. The ranks are stand-ins."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from fsdpfuzz.cli._interrupt import Interrupts
from fsdpfuzz.corpus import read_entry
from fsdpfuzz.loop import Stopped
from tests.acceptance.standin_program import call, document, runs, started
from tests.acceptance.test_cli import read_until_closed, wait_for

RUN = ("run", "parity", "--max-examples", "60", "--seed", "3")


def test_each_run_has_a_folder_and_says_where_its_report_is(program: list[str]) -> None:
    folder = Path(program[1]).parent
    for _ in range(2):
        done = call(program, *RUN, mode="fault")
        (report,) = re.findall(r"^report +(\S+)$", done.stdout, re.MULTILINE)
        latest = (folder / ".fsdpfuzz/runs/latest").resolve()
        assert (folder / report).resolve() == latest / "report.html"
        assert "<h1>1 new finding</h1>" in (folder / report).read_text()
    first, second = runs(program)
    assert latest == second
    assert [
        re.fullmatch(r"\d{4}-\d\d-\d\d-\d{6}-3(-\d)?", run.name) is None for run in (first, second)
    ] == [False, False]
    for run in (first, second):
        (case,) = (run / "failures").iterdir()
        entry = read_entry(case)
        assert entry.found is not None
        assert entry.found.shrink_steps > 0, "the smallest case takes the place of the first"
        assert json.loads((run / "result.json").read_text())["output"].endswith(run.name)
    assert not (folder / ".fsdpfuzz/failures").exists()
    listed = call(program, "corpus", "list", ".fsdpfuzz").stdout
    assert listed.count("big/mismatch/fsdp2") == 2, "the folder of a run is a corpus"
    assert first.name in (second / "report.html").read_text(), "the report lists earlier runs"


def test_a_known_defect_takes_one_line(program: list[str]) -> None:
    done = call(program, *RUN, mode="known")
    lines = [line for line in done.stdout.splitlines() if "K1" in line]
    assert len(lines) == 1
    assert re.fullmatch(r"known as K1: \d+ cases, 1 finding", lines[0])
    assert "should be" not in done.stdout


def test_the_counts_add_up(program: list[str]) -> None:
    done = call(program, *RUN, "--json", "result.json", mode="skip")
    counts = {name: int(n) for name, n in re.findall(r"^ (\w+) +(\d+) *$", done.stdout, re.M)}
    parts = ("passed", "rejected", "vacuous", "failed", "skipped")
    assert sum(counts[name] for name in parts) == counts["drawn"]
    assert min(counts["failed"], counts["skipped"], counts["passed"]) > 0
    result = document(program)
    for name in (*parts, "drawn", "examples", "seed"):
        assert result[name] == counts[name]


def test_a_run_ends_when_its_time_is_over(program: list[str]) -> None:
    done = call(program, "run", "--max-seconds", "0.5", "--json", "result.json", mode="slow")
    assert done.returncode == 0, done.stderr
    examples = document(program)["examples"]
    assert 0 < examples < 5000
    assert "found no more different cases" not in done.stderr
    done = call(program, "run", "--max-seconds", "600", "--max-examples", "5")
    assert re.search(r"examples +5\b", done.stdout)


def test_junit_and_annotations_name_the_findings(program: list[str]) -> None:
    done = call(program, *RUN, "--junit", "junit.xml", mode="fault", GITHUB_ACTIONS="true")
    suite = ET.parse(Path(program[1]).parent / "junit.xml").getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    (case,) = suite
    assert (case.get("classname"), case.get("name")) == ("fsdpfuzz.parity", "big/mismatch/fsdp2")
    (failure,) = case
    assert failure.get("message") == "2, but should be 1"
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("::")]
    assert re.fullmatch(
        r"::error title=big/mismatch/fsdp2::2, but should be 1%0Afsdpfuzz repro \S+\.json", line
    )
    done = call(program, *RUN, "--junit", "junit.xml", mode="known", GITHUB_ACTIONS="true")
    suite = ET.parse(Path(program[1]).parent / "junit.xml").getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("2", "0", "1")
    assert "::notice title=known defect::K1 still shows" in done.stdout.splitlines()


@pytest.mark.parametrize("value", ["", "false"])
def test_without_github_there_are_no_annotations(value: str, program: list[str]) -> None:
    done = call(program, *RUN, mode="fault", GITHUB_ACTIONS=value)
    assert "::" not in done.stdout


def test_whoever_sets_the_variable_means_github(program: list[str]) -> None:
    done = call(program, *RUN, mode="fault", GITHUB_ACTIONS="1")
    assert "::error title=" in done.stdout


def test_results_can_go_to_what_is_no_file(program: list[str]) -> None:
    """A device, a pipe, or a link to one is not replaced by a file."""
    folder = Path(program[1]).parent
    (folder / "null").symlink_to("/dev/null")
    options = ("--json", "null", "--junit", "null")
    assert call(program, *RUN, *options).returncode == 0
    assert (folder / "null").is_symlink()
    (folder / "full").symlink_to("/dev/full")
    done = call(program, *RUN, "--json", "full")
    assert "fsdpfuzz: full: cannot be written: No space left on device" in done.stderr
    assert "examples" in done.stdout
    assert (folder / "full").is_char_device()


def test_a_result_that_cannot_be_written_leaves_the_table(program: list[str]) -> None:
    folder = Path(program[1]).parent
    (folder / "sub").mkdir()
    arguments = ("run", "--max-examples", "5000", "--json", "sub/x.json")
    with started(program, *arguments, mode="slow") as process:
        wait_for((folder / ".fsdpfuzz/runs/latest/digests.txt").exists)
        (folder / "sub").rename(folder / "gone")
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=60)
    assert re.search(r"examples +\d+", stdout), stderr
    assert "report" in stdout
    assert "sub/x.json: cannot be written" in stderr
    assert "Traceback" not in stderr
    assert process.returncode == 143


def test_the_report_of_a_run_that_goes_on_can_be_open(program: list[str]) -> None:
    report = Path(program[1]).parent / ".fsdpfuzz/runs/latest/report.html"
    with started(program, "run", "--max-examples", "5000", mode="slow") as process:
        wait_for(report.exists)
        going_on = report.read_text()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert "so far; the run was still going on" in going_on
    assert 'name="fsdpfuzz-refresh"' in going_on
    assert 'name="fsdpfuzz-refresh"' not in report.read_text()


@pytest.mark.alone
def test_the_first_interrupt_is_answered_at_once(program: list[str]) -> None:
    folder = Path(program[1]).parent
    with started(program, *RUN, "--json", "result.json", mode="stuck") as process:
        wait_for(lambda: any(folder.glob(".fsdpfuzz/runs/latest/failures/*.json")))
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "fsdpfuzz: finishing; Ctrl-C again stops\n" in stderr
    assert re.search(r"findings, new +1\b", stdout)


def test_a_signal_that_got_lost_is_raised_again() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts() as interrupts:
        interrupts.again()
        with pytest.raises(Stopped):
            signal.raise_signal(signal.SIGTERM)
        for _ in range(2):
            with pytest.raises(Stopped, match="SIGTERM"):
                interrupts.again()
        interrupts.done()
        interrupts.again()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.alone
def test_a_run_that_ignores_interrupts_goes_on(program: list[str]) -> None:
    done = subprocess.run(
        ["sh", "-c", 'trap "" INT; "$@"', "sh", *program, "run", "--max-examples", "5"],
        cwd=Path(program[1]).parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "shown"),
    [
        ([], 2, ["Usage: fsdpfuzz [OPTIONS] COMMAND", "  minimize  "]),
        (["corpus"], 2, ["Usage: fsdpfuzz corpus [OPTIONS] COMMAND", "  prune  "]),
        (["-h"], 0, ["Usage: fsdpfuzz [OPTIONS] COMMAND"]),
        (["corpus", "known", "-h"], 0, ["Usage: fsdpfuzz corpus known [OPTIONS] COMMAND"]),
        (["--version"], 0, ["fsdpfuzz 0."]),
    ],
)
def test_help_is_laid_out(
    program: list[str], arguments: list[str], code: int, shown: list[str]
) -> None:
    done = call(program, *arguments)
    assert done.returncode == code
    assert done.stderr == ""
    for text in shown:
        assert any(line.startswith(text) for line in done.stdout.splitlines()), done.stdout


def on_a_terminal(program: list[str], *arguments: str, **variables: str) -> str:
    """What the command prints on a terminal of 80 columns."""
    controller, terminal = pty.openpty()
    inherited = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "PYTHONIOENCODING")}
    process = subprocess.Popen(
        [*program, *arguments],
        cwd=Path(program[1]).parent,
        env={**inherited, "TERM": "xterm-256color", "COLUMNS": "80", **variables},
        stdout=terminal,
        stderr=terminal,
        stdin=terminal,
    )
    os.close(terminal)
    seen = read_until_closed(controller)
    process.wait(60)
    return seen


def test_without_colour_there_is_no_bold_either(program: list[str]) -> None:
    assert call(program, "new", "-o", "case.json").returncode == 0
    assert "\x1b[1m" in on_a_terminal(program, "explain", "case.json")
    assert "\x1b[" not in on_a_terminal(program, "explain", "case.json", NO_COLOR="1")
    assert not re.search(
        r"\x1b\[[\d;]*m", on_a_terminal(program, "run", "--max-examples", "5", NO_COLOR="1")
    )


@pytest.mark.parametrize("variables", [{"LANG": "C"}, {"LC_ALL": "POSIX", "LANG": "en_US.UTF-8"}])
def test_a_plain_locale_gets_ascii(program: list[str], variables: dict[str, str]) -> None:
    assert call(program, "new", "-o", "case.json").returncode == 0
    plain = {"PYTHONIOENCODING": "", "LC_ALL": "", **variables}
    done = call(program, "explain", "case.json", **plain)
    assert done.stdout.isascii()
    assert "|-- 0 linear 3->4" in done.stdout
    assert "weight 4x3" in done.stdout
    seen = on_a_terminal(program, "explain", "case.json", NO_COLOR="1", **plain, LC_CTYPE="")
    assert seen.isascii()
    assert "|-- 0 linear 3->4" in seen
    for command in (("corpus", "show", "case.json"), ("run", "--max-examples", "5"), ("-h",)):
        done = call(program, *command, **plain)
        assert (done.stdout + done.stderr).isascii()


def test_other_locales_get_the_signs(program: list[str]) -> None:
    assert call(program, "new", "-o", "case.json").returncode == 0
    for variables in ({"LANG": "C.UTF-8"}, {"LANG": "C", "PYTHONIOENCODING": "utf-8"}):
        done = call(program, "explain", "case.json", **{"LC_ALL": "", **variables})
        assert "├── 0 linear 3→4" in done.stdout


def test_a_list_of_cases_fits_the_terminal(program: list[str]) -> None:
    seen = on_a_terminal(program, "corpus", "list")
    lines = [line for line in seen.splitlines() if re.match("[0-9a-f]{16} ", line)]
    assert len(lines) > 50, "the seeds that fsdpfuzz comes with"
    assert max(map(len, lines)) <= 80
    assert max(len(line) for line in call(program, "corpus", "list").stdout.splitlines()) > 80

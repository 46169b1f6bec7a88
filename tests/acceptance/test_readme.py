"""Every command and every snippet of the README, run. Real ranks, on gloo, with fewer cases."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from fsdpfuzz.cli._main import build
from fsdpfuzz.corpus import Entry, Found, write_entry
from fsdpfuzz.known import Known
from tests.acceptance.commands import MODULE, ROOT, started

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
COMMANDS = [
    line.partition("#")[0].strip()
    for language, block in BLOCKS
    if language == "sh"
    for line in block.splitlines()
]
# In running text, too: whatever begins as a command does.
COMMANDS += [
    text
    for text in re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", README, flags=re.M | re.S))
    if re.match(r"(fsdpfuzz|pytest|make) ", text) and text not in COMMANDS
]
KNOWN = "fsdp2-recomputed-quiet-unit"
"""A defect of every torch that is supported here, quick to run; here it is a new finding."""
FEWER = {
    r"--max-examples \d+": "--max-examples 3",
    r"--max-seconds \d+": "--max-seconds 5 --max-examples 3",
    r"--world-size 4$": "--world-size 4 --max-examples 3",
    r"--json run.json --junit run.xml": r"\g<0> --max-examples 3",
    r"fsdpfuzz run$": r"\g<0> --max-examples 3",
    r"--profile dev$": r"\g<0> --max-examples 3",
    r"^fsdpfuzz run --(python|against) \S+$": r"\g<0> --max-examples 3",
    r"fsdpfuzz-dev": "fsdpfuzz-smoke -k test_parity",
    r"^fsdpfuzz check mymodel.py": r"\g<0> --max-examples 2",
    r"-k documents": "-k 'documents and test_fine_tune and parity'",
}
"""What makes a command shorter."""
MINE = """
import torch
from torch.distributed.fsdp import fully_shard

def model():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))

def batch(step, rank):
    return torch.randn(2, 3)

def shard(model, mesh):
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
"""
"""A model of one's own, with how it is wrapped."""
CODES = {
    "fsdpfuzz replay": (1,),
    "fsdpfuzz repro CASE.json -o": (1,),
    "fsdpfuzz run": (0, 1),
    "pytest": (0, 1),
}
"""Exit codes by how a command begins; 0 for all others."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a case that fails, a corpus, no known defect, and another Python."""
    other = tmp_path / "OTHER" / "bin" / "python"
    other.parent.mkdir(parents=True)
    other.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    other.chmod(0o755)
    (tmp_path / "corpus/known").mkdir(parents=True)
    seeds = ROOT / "corpus/seeds"
    for path in sorted(seeds.glob("002-*.json"))[:2]:
        (tmp_path / "corpus" / path.name).write_bytes(path.read_bytes())
    known = Known.load(ROOT / "corpus/known")
    case, finding = known.minimal(KNOWN), known.defects[KNOWN].finding
    found = Found(
        key=finding.key,
        message=finding.message,
        finding=finding,
        property="parity",
        torch="2.13.0",
        backend="gloo",
        world_size=case.world_size,
        date="2026-11-20",
        seed=1,
    )
    write_entry(tmp_path / "CASE.json", Entry(case=case, found=found))
    (tmp_path / "mymodel.py").write_text(MINE)
    return tmp_path


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    # The shortest one starts as it does for users.
    lent = command != "fsdpfuzz run"
    for pattern, shorter in FEWER.items():
        command = re.sub(pattern, shorter, command)
    program, *arguments = shlex.split(command)
    environ = {k: v for k, v in os.environ.items() if k not in ("CI", "GITHUB_ACTIONS")}
    environ |= {"PYTHONPATH": str(ROOT), "FSDPFUZZ_BACKEND": "gloo"}
    if program == "pytest" or arguments[:1] in (["run"], ["check"]):
        # What they find otherwise takes long to reduce.
        environ["FSDPFUZZ_KNOWN"] = str(ROOT / "corpus/known")
    if program == "make":
        dry = ["make", "--dry-run", *arguments]
        return subprocess.run(
            dry, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
        )
    words = (program, *arguments)
    return started(MODULE, *words, cwd=folder, environ=environ, seconds=280, lent=lent)


def test_it_is_short() -> None:
    assert README.count("\n") < 120
    assert len(COMMANDS) > 20
    assert {language for language, _ in BLOCKS} == {"sh", "python"}


def test_each_option_that_it_names_is_there() -> None:
    """Those in running text, too, which no command of it shows."""

    def options(command: Any) -> Iterator[str]:
        for parameter in command.params:
            yield from parameter.opts
        for inner in getattr(command, "commands", {}).values():
            yield from options(inner)

    ours = set(options(typer.main.get_command(build())))
    help_text = subprocess.run(
        [sys.executable, "-m", "pytest", "--help"], capture_output=True, text=True, check=True
    ).stdout
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", README))
    assert len(named) > 20
    assert named - ours - set(re.findall(r"--[a-z][a-z-]*", help_text)) == set()


@pytest.mark.parametrize("command", dict.fromkeys(COMMANDS))
def test_a_command(command: str, folder: Path) -> None:
    if command == "fsdpfuzz corpus known check":
        assert shell("fsdpfuzz corpus known add CASE.json", folder).returncode == 0
    done = shell(command, folder)
    codes = next((c for start, c in CODES.items() if command.startswith(start)), (0,))
    assert done.returncode in codes, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "No such" not in done.stderr


def test_the_snippet_is_a_test(folder: Path) -> None:
    snippet = next(block for _, block in BLOCKS if "from fsdpfuzz.properties" in block)
    (folder / "test_mine.py").write_text(snippet.replace("50", "5"))
    done = shell("pytest test_mine.py -p no:cacheprovider", folder)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert re.search(r"^5 cases: |^\d+ cases: .*[1-9]\d* failed$", done.stdout, re.MULTILINE)
    strategy = re.search(r"fsdpfuzz\.strategies\.cases\(.*?\)\)", snippet)
    assert strategy is not None
    text = snippet.replace('"memory"', strategy[0]).replace("50", "3")
    (folder / "test_mine.py").write_text("import fsdpfuzz.strategies\n" + text)
    done = shell("pytest test_mine.py -p no:cacheprovider", folder)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert "fsdp1" not in done.stdout
    assert re.search(r"^\d+ cases: ", done.stdout, re.MULTILINE)


def test_the_snippet_checks_a_model_of_ones_own(folder: Path) -> None:
    snippet = next(block for _, block in BLOCKS if "fsdpfuzz.check" in block)
    (folder / "test_mine.py").write_text(snippet.replace("20", "4"))
    # By a seed: other draws may meet a known defect, which is no failure, but does not pass.
    done = shell("pytest test_mine.py -p no:cacheprovider --hypothesis-seed=1", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^4 cases: 4 passed", done.stdout, re.MULTILINE), done.stdout


def test_the_table_of_profiles_is_right() -> None:
    from fsdpfuzz.loop import PROFILES

    rows = re.findall(r"^\| (\w+) \| (\d+) \|", README, re.MULTILINE)
    assert {name: int(cases) for name, cases in rows} == {
        name: profile.max_examples for name, profile in PROFILES.items()
    }


BENCHMARKS = re.findall(r"`python (benchmarks/\w+\.py)`", README)


def test_the_benchmarks_that_are_named_can_be_run() -> None:
    assert len(BENCHMARKS) == 3
    for name in BENCHMARKS:
        done = benchmark(name, "--help")
        assert done.returncode == 0, done.stderr
        assert "usage: " in done.stdout


def test_the_first_benchmark_finds_a_fault(tmp_path: Path) -> None:
    words = ["--only", "fsdp1_root_freed_after_forward", "--without-seeds", "--examples", "20"]
    words += ["--after", "0", "--shrink-seconds", "5", "--json", str(tmp_path / "found.jsonl")]
    done = benchmark(BENCHMARKS[0], *words)
    assert "1 of 1 faults found (100.0%)" in done.stdout, done.stdout + done.stderr


def benchmark(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / name), *words], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("sensitivity", r"Of (\d+) faults (\d+) were found"),
        ("mutants", r"Of (\d+) mutants (\d+) were killed"),
        ("rediscovered", r"Of (\d+) bugs (\d+) were found again"),
    ],
)
def test_the_table_of_what_is_found_is_as_measured(page: str, sentence: str) -> None:
    said = re.search(rf"benchmarks/{page}\.md\) \| (\d+) of (\d+) \|", README)
    kept = re.search(sentence, (ROOT / "benchmarks" / f"{page}.md").read_text())
    assert said is not None
    assert kept is not None
    assert said.groups() == kept.groups()[::-1]

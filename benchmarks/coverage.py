"""Which of FSDP's lines and branches the ranks run, for the seeds and for drawn examples.

    python benchmarks/coverage.py [--examples 3000] [--world-sizes 2,3,4] [--jobs N] [--seed 1]
        [--backend gloo] [--seeds-only] [--json FILE]

Counted are the statements of functions, and all of them: a rank runs those of modules when it
imports them. Some of them no sound program can run on a backend, as `benchmarks.unreached` says:
the shares are of the others. It lists the functions that have statements which were not run and
could be, with what is known of why.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# In place of the folder of this file, where the library would be found to be this file.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from coverage import Coverage
from rich.console import Console
from rich.table import Table

from benchmarks.covered import FOLDER, patterns
from benchmarks.unreached import ELSEWHERE, why

ROOT = Path(__file__).resolve().parents[1]
INJECTION = "benchmarks.covered:install"
GROUPS = {
    "FSDP2": r"distributed/fsdp/_fully_shard/",
    "FSDP1": r"distributed/fsdp/",
    "composable": r"distributed/_composable/",
    "state_dict.py": r"distributed/checkpoint/state_dict\.py",
}
"""A file belongs to the first group whose pattern it has."""


@dataclass(frozen=True)
class Share:
    """So many of all statements and branches."""

    lines: int = 0
    of_lines: int = 0
    branches: int = 0
    of_branches: int = 0
    elsewhere: int = 0
    """Statements that were not run and cannot be."""

    def plus(self, summary: dict[str, Any], elsewhere: int) -> Share:
        """With one more function, of coverage's own report."""
        return Share(
            self.lines + summary["covered_lines"],
            self.of_lines + summary["num_statements"],
            self.branches + summary["covered_branches"],
            self.of_branches + summary["num_branches"],
            self.elsewhere + elsewhere,
        )

    @property
    def words(self) -> tuple[str, str, str]:
        """Statements, the share that was run of those that can be, and of all."""
        return (
            str(self.of_lines),
            percent(self.lines, self.of_lines - self.elsewhere),
            percent(self.lines, self.of_lines),
        )


def percent(part: int, whole: int) -> str:
    """``92.1 %``."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def run_seeds(options: argparse.Namespace, folder: Path) -> None:
    """The documents' cases, with the injection."""
    words = [
        "-m",
        "benchmarks.one_injection",
        "seeds",
        "--inject",
        INJECTION,
        "--backend",
        options.backend,
    ]
    start([[*words, "--seconds", "100000"]], folder)


def run_drawn(options: argparse.Namespace, folder: Path) -> None:
    """The examples, shared over the jobs and the world sizes."""
    sizes = [int(size) for size in options.world_sizes.split(",")]
    shares = [(job, size) for job in range(options.jobs) for size in sizes]
    each = -(-options.examples // len(shares))
    words = [
        "-m",
        "benchmarks.one_injection",
        "hunt",
        "--inject",
        INJECTION,
        "--backend",
        options.backend,
    ]
    words += ["--examples", str(each), "--seconds", "100000", "--after", "1000000"]
    words += ["--shrink-seconds", "1"]
    commands = [
        [*words, "--seed", str(options.seed + i), "--world-size", str(size)]
        for i, (_, size) in enumerate(shares)
    ]
    for at in range(0, len(commands), options.jobs):
        start(commands[at : at + options.jobs], folder)


def run_import(folder: Path) -> None:
    """What a rank runs when it imports FSDP, before its first case."""
    words = ["run", f"--rcfile={os.devnull}", "--branch", f"--include={','.join(patterns())}"]
    words += [f"--data-file={folder / 'ranks.imports'}", "-m", "fsdpfuzz.ranks._worker"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    subprocess.run(
        [sys.executable, "-m", "coverage", *words], cwd=ROOT, env=environment, check=True
    )


def start(commands: list[list[str]], folder: Path) -> None:
    """Runs commands side by side; each has to end well."""
    environment = {**os.environ, FOLDER: str(folder), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    running = [
        subprocess.Popen(
            [sys.executable, *words], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
        )
        for words in commands
    ]
    for process in running:
        told, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"{process.args!r} ended with {process.returncode}: {told[-500:]}")
        record = json.loads(told.splitlines()[-1])
        print({k: record[k] for k in ("status", "examples", "seeds", "seconds") if k in record})


def report(folder: Path) -> dict[str, Any]:
    """Coverage's own report, of all that the ranks left, by function."""
    merged = Coverage(
        data_file=str(folder / "merged"), branch=True, include=patterns(), config_file=False
    )
    merged.combine([str(path) for path in folder.glob("ranks.*")], keep=True)
    out = folder / "report.json"
    merged.json_report(outfile=str(out), morfs=list(files()))
    found: dict[str, Any] = json.loads(out.read_bytes())
    return found


def files() -> Iterator[str]:
    """All that could be run, also what no case imported."""
    home = Path(str(torch.__file__)).parent
    for pattern in patterns():
        inside = Path(pattern)
        if inside.name == "*":
            yield from sorted(str(path) for path in inside.parent.rglob("*.py"))
        else:
            yield str(home / inside.relative_to(home))


def group_of(file: str) -> str:
    """The group of a file."""
    return next(name for name, pattern in GROUPS.items() if re.search(pattern, file))


def short_name(file: str) -> str:
    """As torch's own sources are spoken of."""
    return file[file.index("distributed/") :]


def count(found: dict[str, Any], backend: str) -> dict[str, Any]:
    """The shares of the groups, and the functions of which something is missed, most first."""
    functions, everything = dict.fromkeys(GROUPS, Share()), dict.fromkeys(GROUPS, Share())
    missed: list[dict[str, Any]] = []
    for file, one in found["files"].items():
        short, group = short_name(file), group_of(file)
        for name, function in one["functions"].items():
            lines, summary = function["missing_lines"], function["summary"]
            reasons = Counter(why(Path(file), short, name, line, backend) for line in lines)
            left = {w: n for w, n in reasons.most_common() if w not in ELSEWHERE[backend]}
            unreached = len(lines) - sum(left.values())
            everything[group] = everything[group].plus(summary, unreached)
            if name:
                functions[group] = functions[group].plus(summary, unreached)
            if left:
                row = {"group": group, "file": short, "function": name or "(module)"}
                numbers = {"missed": sum(left.values()), "statements": summary["num_statements"]}
                missed.append({**row, **numbers, "why": left})
    missed.sort(key=lambda row: (list(GROUPS).index(row["group"]), -row["missed"]))
    groups = {
        name: {"functions": vars(functions[name]), "all": vars(everything[name])} for name in GROUPS
    }
    return {"title": found["title"], "groups": groups, "missed": missed}


def show(told: dict[str, Any], console: Console, backend: str) -> None:
    """The tables of what was counted."""
    reach = f"run, of what {backend} reaches"
    columns = ("statements in functions", reach, "of all", "branches")
    table = Table("", *columns, "all statements", reach, "of all", title=told["title"])
    for name, shares in told["groups"].items():
        inside = Share(**shares["functions"])
        branches = percent(inside.branches, inside.of_branches)
        table.add_row(name, *inside.words, branches, *Share(**shares["all"]).words)
    console.print(table)
    title = f"not run of what {backend} reaches: in {len(told['missed'])} functions"
    listed = Table("", "file", "function", "not run", "of", "why", title=title)
    for row in told["missed"]:
        place = (row["group"], row["file"].rpartition("/")[2], row["function"])
        listed.add_row(*place, str(row["missed"]), str(row["statements"]), in_words(row["why"]))
    console.print(listed)


def in_words(reasons: dict[str, int]) -> str:
    """Each reason, with how often it holds where there are several."""
    if len(reasons) == 1:
        return next(iter(reasons))
    return "; ".join(f"{reason} ({times})" for reason, times in reasons.items())


def main() -> int:
    """Runs the seeds, then the examples, and shows what each of the two reaches."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--examples", type=int, default=3000)
    parser.add_argument("--world-sizes", default="2,3,4")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", choices=list(ELSEWHERE), default="gloo")
    parser.add_argument("--seeds-only", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    console = Console(width=160)
    told = []
    with tempfile.TemporaryDirectory(prefix="fsdpfuzz-coverage-") as name:
        parts = [("the seeds", run_seeds)]
        if not options.seeds_only:
            parts.append((f"{options.examples} examples", run_drawn))
        for number, (title, part) in enumerate(parts):
            folder = Path(name) / str(number)
            folder.mkdir()
            run_import(folder)
            part(options, folder)
            told.append(count({"title": title, **report(folder)}, options.backend))
            show(told[-1], console, options.backend)
    if options.json is not None:
        options.json.write_text(json.dumps(told, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

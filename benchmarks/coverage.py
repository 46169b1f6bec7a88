"""Which of FSDP's lines and branches the ranks run, for the seeds and for drawn examples.

    python benchmarks/coverage.py [--examples 3000] [--world-sizes 2,3,4] [--jobs N] [--seed 1]
        [--backend gloo] [--seeds-only] [--json FILE]

Counted are statements inside functions: those of modules run when torch is imported. Of these a
backend cannot reach those of functions for other devices, and sound programs none that raise: the
share of the rest is told apart. It lists the functions that no case entered, with the reason where
`REASONS` has one.
"""

from __future__ import annotations

import argparse
import json
import linecache
import os
import re
import subprocess
import sys
import tempfile
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

ROOT = Path(__file__).resolve().parents[1]
INJECTION = "benchmarks.covered:install"
GROUPS = {
    "FSDP2": r"distributed/fsdp/_fully_shard/",
    "FSDP1": r"distributed/fsdp/",
    "composable": r"distributed/_composable/",
    "state_dict.py": r"distributed/checkpoint/state_dict\.py",
}
"""A file belongs to the first group whose pattern it has."""
REASONS = {
    r"stream|event|_get_gradient_divide_factors_nccl|cuda|_offload_to_cpu_async": "needs a GPU",
    r"_compiled|compile|traceable|dynamo|unsafe_setattr": "torch.compile is no dimension",
    r"__repr__|__str__|_logging|_get_post_grad": "only says something",
    r"deepcopy|__getstate__|__setstate__|pickle": "a wrapped model is copied or pickled by nobody",
    r"tensor_extension|_ext_|fsdp_(pre|post)_all_gather|extensions": "no tensor extensions drawn",
    r"symm_mem|SymmMem|multicast|ProcessGroupAlloc|custom_reduce": "needs NVLink",
    r"_init_device_handle|_ensure_valid|hpu|xpu|mtia": "another kind of device",
    r"sharded_grad_scaler.*apply_scale": "a loss is one tensor",
    r"_composable/(replicate|contract)\.py": "DDP's replicate, in whose place FSDP2's is drawn",
    r"spmd|DataParallelMeshDims|_named_dims": "no mesh is drawn that names its axes to FSDP",
    r"_debug_utils": "only says something",
    r"_patch_(model|optimizer)_state_dict": "no function of the public API",
    r"state_dict\.py:(get|set)_state_dict$": "model and optimizer are saved one by one",
    r"share_comm_ctx": "no roots share a stream",
    r"_trace_utils": "torch.fx is no dimension",
    r"jvp|RegisterPreBackwardFunction|functorch": "functorch is no dimension",
    r"set_(unshard_in_backward|separate_reduce)": "a setter, not drawn",
    r"legacy_optim|(full|sharded|rekey)_optim_state_dict|optim_input": "deprecated",
    r"sync_module|_warn_cpu_init": "needs a GPU",
    r"_get_default_comm_hook$": "torch calls it nowhere",
    r"compress_hook|low_precision_hook|_decompress": "needs a GPU",
}
"""Why no case here enters a function whose file and name have the pattern."""
UNKNOWN = "not entered by these examples"
ELSEWHERE = {
    "gloo": ("needs a GPU", "needs NVLink", "another kind of device"),
    "nccl": ("needs NVLink", "another kind of device"),
}
"""Why a backend cannot enter a function."""


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
    def words(self) -> tuple[str, str, str, str]:
        """Statements, their share, that of those that can be run, and that of branches."""
        return (
            str(self.of_lines),
            percent(self.lines, self.of_lines),
            percent(self.lines, self.of_lines - self.elsewhere),
            percent(self.branches, self.of_branches),
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


def reason_for(file: str, function: str) -> str:
    """Why a function is entered by no case; `UNKNOWN` where nobody has said so yet."""
    place = f"{file}:{function}"
    return next((why for pattern, why in REASONS.items() if re.search(pattern, place)), UNKNOWN)


def out_of_reach(file: str, function: str, one: dict[str, Any], backend: str) -> int:
    """How many statements of a function that were not run cannot be, by sound programs."""
    missing: list[int] = one["missing_lines"]
    if reason_for(short_name(file), function) in ELSEWHERE[backend]:
        return len(missing)
    return sum(linecache.getline(file, line).lstrip().startswith("raise") for line in missing)


def short_name(file: str) -> str:
    """As torch's own sources are spoken of."""
    return file[file.index("distributed/") :]


def show(found: dict[str, Any], console: Console, backend: str) -> dict[str, Any]:
    """The tables; the same as data."""
    shares = dict.fromkeys(GROUPS, Share())
    never: list[dict[str, str]] = []
    for file, one in found["files"].items():
        short = short_name(file)
        for name, function in one["functions"].items():
            if not name:
                continue
            summary = function["summary"]
            unreached = out_of_reach(file, name, function, backend)
            shares[group_of(file)] = shares[group_of(file)].plus(summary, unreached)
            if summary["num_statements"] and not summary["covered_lines"]:
                why = reason_for(short, name)
                never.append({"file": short, "function": name, "reason": why})
    reach = f"run, of what {backend} reaches"
    table = Table("", "statements in functions", "run", reach, "branches", title=found["title"])
    for name, share in shares.items():
        table.add_row(name, *share.words)
    console.print(table)
    listed = Table("file", "function", "why", title=f"{len(never)} functions never entered")
    for row in never:
        listed.add_row(*row.values())
    console.print(listed)
    told = {name: vars(share) for name, share in shares.items()}
    return {"title": found["title"], "groups": told, "never": never}


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
    console = Console(width=140)
    told = []
    with tempfile.TemporaryDirectory(prefix="fsdpfuzz-coverage-") as name:
        parts = [("the seeds", run_seeds)]
        if not options.seeds_only:
            parts.append((f"{options.examples} examples", run_drawn))
        for number, (title, part) in enumerate(parts):
            folder = Path(name) / str(number)
            folder.mkdir()
            part(options, folder)
            told.append(show({"title": title, **report(folder)}, console, options.backend))
    if options.json is not None:
        options.json.write_text(json.dumps(told, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

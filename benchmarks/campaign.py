"""Many runs side by side, and one list of what they found: for a machine with many cores.

    python benchmarks/campaign.py [--jobs 16] [--examples 250] [--world-size 2 3 4]
        [--backend gloo] [--seed 1] [--plant MODULE:FUNCTION] [--output DIR] [--json FILE]

Each job is a ``fsdpfuzz run`` of that many examples with a seed and a world size of its own. The
exit code is 1 if there is a finding that no known defect explains.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
COUNTED = ("examples", "passed", "rejected", "vacuous", "failed", "skipped", "harness_errors")


@dataclass(frozen=True, slots=True)
class Job:
    """One run."""

    seed: int
    world_size: int
    folder: Path


def command(job: Job, args: argparse.Namespace) -> list[str]:
    """The command line of a run."""
    words = [sys.executable, "-m", "fsdpfuzz", "run", "--backend", args.backend]
    words += ["--seed", str(job.seed), "--world-size", str(job.world_size)]
    words += ["--max-examples", str(args.examples), "--output", str(job.folder)]
    words += ["--json", str(job.folder / "result.json")]
    return [*words, "--plant", args.plant] if args.plant else words


def run(job: Job, args: argparse.Namespace) -> dict[str, Any]:
    """Runs it to its end; the result, or what it printed instead of one."""
    job.folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        command(job, args), capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    (job.folder / "output.txt").write_text(done.stdout + done.stderr)
    try:
        result: dict[str, Any] = json.loads((job.folder / "result.json").read_bytes())
    except (OSError, ValueError):
        return {"seed": job.seed, "error": (done.stderr or done.stdout)[-2000:]}
    return result


def report(results: Sequence[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Counts over all runs, and the findings by key or by the known defect that explains them."""
    new: dict[str, list[dict[str, Any]]] = {}
    known: dict[str, int] = {}
    unconfirmed: dict[str, int] = {}
    for result in results:
        for found in result.get("findings", ()):
            if found["known"]:
                known[found["known"]] = known.get(found["known"], 0) + 1
            else:
                new.setdefault(found["key"], []).append(found)
        for found in result.get("unconfirmed", ()):
            unconfirmed[found["key"]] = unconfirmed.get(found["key"], 0) + 1
    counts = {name: sum(result.get(name, 0) for result in results) for name in COUNTED}
    return {
        **counts,
        "seconds": round(seconds, 1),
        "examples_per_second": round(counts["examples"] / seconds, 1),
        "new": new,
        "known": known,
        "unconfirmed": unconfirmed,
        "errors": [result for result in results if "error" in result],
    }


def show(document: dict[str, Any], console: Console) -> None:
    """The counts in a line, what is new in a table with one case for each."""
    console.print(", ".join(f"{document[name]} {name}" for name in COUNTED))
    console.print(f"{document['examples_per_second']} examples/s in {document['seconds']} s")
    for name, times in sorted(document["known"].items()):
        console.print(f"known: {name} ({times} runs)")
    for name, times in sorted(document["unconfirmed"].items()):
        console.print(f"unconfirmed: {name} ({times} runs)")
    for error in document["errors"]:
        console.print(f"seed {error['seed']} gave no result: {error['error']}")
    if document["new"]:
        table = Table("finding", "runs", "case")
        for key, found in sorted(document["new"].items()):
            table.add_row(f"{key}\n{found[0]['message'][:300]}", str(len(found)), found[0]["case"])
        console.print(table)


def main() -> int:
    """Runs all jobs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--runs", type=int, help="runs in all; default as many as jobs")
    parser.add_argument("--examples", type=int, default=250)
    parser.add_argument("--world-size", type=int, nargs="+", default=[2])
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plant", help="module:function, called in every rank")
    parser.add_argument("--output", type=Path, default=Path(".fsdpfuzz/campaign"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    jobs = [
        Job(args.seed + i, args.world_size[i % len(args.world_size)], args.output / f"run{i}")
        for i in range(args.runs or args.jobs)
    ]
    started = time.monotonic()
    with ThreadPoolExecutor(args.jobs) as threads:
        results = list(threads.map(lambda job: run(job, args), jobs))
    document = report(results, time.monotonic() - started)
    if args.json is not None:
        args.json.write_text(json.dumps(document, indent=1))
    show(document, Console(width=160))
    return 1 if document["new"] or document["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())

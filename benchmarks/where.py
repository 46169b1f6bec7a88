"""Where the seconds of a case go: in which part of it, and in which options of a case.

    python benchmarks/where.py [--backend auto|gloo|nccl] [--seconds S] [--seed N] [--json FILE]

Runs what `fsdpfuzz run` would for some seconds on one pool, and counts the clean cases. The first
table has the parts of a case, a few of them inside of others. The second has the options whose
cases take longest beside those without them; an option shows what comes with it, too. A case is
compared with others of its API and with as many operations, of which the time has the most.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from benchmarks.in_ranks import INNER
from benchmarks.meter import IN_CONTROLLER, IN_RANKS, Meter, Timed
from fsdpfuzz.case import features
from fsdpfuzz.loop import (
    PROPERTIES,
    RunSettings,
    SessionSettings,
    default_known,
    profile_named,
    resolve_machine,
)
from fsdpfuzz.pool import sigterm_exits

FEWEST = 5
"""Cases with an option, and without it, for a row of the table."""
ROWS = 30
SLOWEST = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backend", choices=("auto", "gloo", "nccl"), default="auto")
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    machine = resolve_machine(chosen.backend, (2,))
    with sigterm_exits(), tempfile.TemporaryDirectory(prefix="fsdpfuzz-where-") as folder:
        settings = RunSettings(
            session=SessionSettings(
                backend=machine.backend,
                profile=profile_named("dev"),
                output=Path(folder),
                known=default_known(),
                seed=chosen.seed,
            ),
            properties=tuple(PROPERTIES),
            max_examples=100_000,
            max_seconds=chosen.seconds,
        )
        meter = Meter()
        rows = meter.run(settings)
    result = {
        "torch": machine.torch,
        "backend": machine.backend,
        "load": os.getloadavg()[0],
        "clean_cases": len(rows),
        "other_cases": len(meter.rows) - len(rows),
        "seconds_starting": sum(row.start for row in meter.rows),
        "parts": parts(rows),
        "options": options(rows),
        "slowest": slowest(rows),
    }
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(result, indent=1))
    show(result)
    return 0


def parts(rows: Sequence[Timed]) -> dict[str, dict[str, float]]:
    """Median and mean milliseconds of each part, and how many cases it takes more than 1 ms in."""
    found = {}
    for name in ("whole", *IN_RANKS, *INNER, *IN_CONTROLLER):
        each = [1000 * (row.whole if name == "whole" else row.share(name)) for row in rows]
        found[name] = {
            "median": statistics.median(each),
            "mean": statistics.fmean(each),
            "largest": max(each),
            "cases": sum(ms > 1.0 for ms in each),
        }
    return found


def options(rows: Sequence[Timed]) -> list[dict[str, Any]]:
    """Each value of a feature with enough cases, those first that cost most in all."""
    alike: defaultdict[tuple[object, ...], list[float]] = defaultdict(list)
    for row in rows:
        alike[_size(row)].append(row.whole)
    usual = {size: statistics.median(seconds) for size, seconds in alike.items()}
    groups: defaultdict[str, list[Timed]] = defaultdict(list)
    for row in rows:
        for name, value in features(row.case).items():
            groups[f"{name}={value}"].append(row)
    found = []
    for name, own in groups.items():
        if min(len(own), len(rows) - len(own)) < FEWEST:
            continue
        beyond = [row.whole - usual[_size(row)] for row in own]
        found.append(
            {
                "option": name,
                "cases": len(own),
                "median": 1000 * statistics.median(row.whole for row in own),
                "beyond": 1000 * statistics.median(beyond),
                "in_all": sum(beyond),
            }
        )
    return sorted(found, key=lambda row: -row["in_all"])


def _size(row: Timed) -> tuple[object, ...]:
    case = row.case
    return case.api, min(len(case.program) // 4, 4), len(case.twins)


def slowest(rows: Sequence[Timed]) -> list[dict[str, Any]]:
    """The slowest cases, with their parts in milliseconds."""
    longest = sorted(rows, key=lambda row: -row.whole)[:SLOWEST]
    return [
        {
            "seconds": row.whole,
            "parts": {name: round(1000 * row.share(name)) for name in (*IN_RANKS, *INNER)},
            "features": features(row.case),
        }
        for row in longest
    ]


def show(result: dict[str, Any]) -> None:
    """Prints the tables."""
    console = Console(width=100)
    console.print(
        f"torch {result['torch']}, {result['backend']}, load {result['load']:.1f}: "
        f"{result['clean_cases']} clean cases, {result['other_cases']} others, "
        f"{result['seconds_starting']:.1f} s of starting ranks"
    )
    table = Table("part", "median ms", "mean ms", "largest ms", "cases over 1 ms")
    for name, row in result["parts"].items():
        shown = f"  {name}" if name in INNER else name
        figures = [f"{row[key]:.1f}" for key in ("median", "mean", "largest")]
        table.add_row(shown, *figures, str(row["cases"]))
    console.print(table)
    table = Table("option", "cases", "median ms", "beyond others ms", "in all s")
    for row in result["options"][:ROWS]:
        table.add_row(
            row["option"],
            str(row["cases"]),
            f"{row['median']:.0f}",
            f"{row['beyond']:+.0f}",
            f"{row['in_all']:+.2f}",
        )
    console.print(table)
    for row in result["slowest"]:
        inside = ", ".join(f"{name} {ms}" for name, ms in row["parts"].items() if ms)
        console.print(f"{row['seconds']:.2f} s: {inside}")


if __name__ == "__main__":
    raise SystemExit(main())

"""Whether a long run grows: memory, descriptors and threads of the ranks and the controller.

After a warm-up, the resident memory of each process may grow by less than 10 % until the end,
and the numbers of its descriptors and threads not at all. Cases that can show a known defect, or
that ask for a refusal, are left out, so that the ranks live as long as the run.

    python benchmarks/soak.py [--examples 2000] [--backend auto|gloo|nccl] [--json FILE]

The exit code is 1 if a process grows, or if no rank lived long enough to tell.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from rich.console import Console
from rich.table import Table

from fsdpfuzz.case import CaseSpec, anatomy, foreseen_rejections
from fsdpfuzz.known import Known
from fsdpfuzz.loop import (
    PROPERTIES,
    CaseDone,
    Event,
    PoolLike,
    Property,
    RunSettings,
    Scope,
    Session,
    SessionSettings,
    Summary,
    default_known,
    profile_named,
    real_ports,
    resolve_machine,
    run,
)
from fsdpfuzz.observations import Observation
from fsdpfuzz.pool import sigterm_exits

MAX_GROWTH = 0.10
WINDOW = 50
"""Samples of which the median counts, after the warm-up and at the end."""
LONG_ENOUGH = 0.5
"""Share of the run that one pair of ranks has to live through."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one process after one case."""

    rss: int
    fds: int
    threads: int


class Tally:
    """The usage of every process, case by case; ranks that start anew are new processes."""

    def __init__(self) -> None:
        self.usage: dict[str, list[Usage]] = {"controller": []}
        self._restarts = 0

    def observe(self, seen: Observation, restarts: int) -> None:
        """The ranks have run a case."""
        for report in seen.reports:
            if report is not None:
                name = f"rank {report.rank} of {restarts}"
                usage = Usage(report.rss_bytes, report.fds, report.threads)
                self.usage.setdefault(name, []).append(usage)

    def case_done(self) -> None:
        """The controller has judged a case."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.usage["controller"].append(
            Usage(
                pages * os.sysconf("SC_PAGE_SIZE"),
                len(os.listdir("/proc/self/fd")),  # noqa: PTH208 (as a rank counts them)
                len(os.listdir("/proc/self/task")),  # noqa: PTH208
            )
        )


class _Watched:
    """A pool whose observations are tallied."""

    def __init__(self, pool: PoolLike, tally: Tally) -> None:
        self._pool = pool
        self._tally = tally

    @property
    def restarts(self) -> int:
        return self._pool.restarts

    def begin(self, case: CaseSpec) -> None:
        self._pool.begin(case)

    def run(self, case: CaseSpec, *, patience: bool = False) -> Observation:
        seen = self._pool.run(case, patience=patience)
        self._tally.observe(seen, self._pool.restarts)
        return seen

    def close(self) -> None:
        self._pool.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--examples", type=int, default=2_000)
    parser.add_argument("--warm-up", type=int, default=200, help="cases that may cost memory")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--backend", choices=("auto", "gloo", "nccl"), default="auto")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with sigterm_exits():
        summary, tally, seconds = soak(options)
    rows = [
        {"process": name, "cases": len(usage), **growth(usage, options.warm_up)}
        for name, usage in tally.usage.items()
        if len(usage) >= options.warm_up + 2 * WINDOW
    ]
    longest = max((row["cases"] for row in rows if row["process"] != "controller"), default=0)
    result = {
        "torch": summary.started.torch,
        "backend": summary.started.backend,
        "examples": summary.counts.examples,
        "seconds": round(seconds, 1),
        "pool_restarts": summary.pool_restarts,
        "findings": [found.finding.key for found in summary.findings],
        "longest_life": longest,
        "processes": rows,
        "held": longest >= LONG_ENOUGH * options.examples and all(row["held"] for row in rows),
    }
    show(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if result["held"] else 1


def soak(options: argparse.Namespace) -> tuple[Summary, Tally, float]:
    """Runs the examples; what every process used meanwhile."""
    machine = resolve_machine(options.backend, (options.world_size,))
    PROPERTIES["soak"] = AllThatPasses(
        name="soak",
        about="all that should pass",
        torch=machine.torch,
        backend=machine.backend,
    )
    tally = Tally()

    def emit(event: Event) -> None:
        if isinstance(event, CaseDone):
            tally.case_done()
            if event.index % 100 == 0:
                print(f"{event.index} cases, {event.restarts} restarts", file=sys.stderr)

    with tempfile.TemporaryDirectory() as folder:
        settings = SessionSettings(
            backend=machine.backend,
            profile=profile_named("dev"),
            output=Path(folder),
            known=default_known(),
            seed=options.seed,
            offers=machine.offers,
        )
        ports = real_ports(settings)
        watched = replace(ports, make_pool=lambda size: _Watched(ports.make_pool(size), tally))
        started = time.perf_counter()
        with Session(settings, watched) as session:
            summary = run(
                RunSettings(
                    session=settings,
                    properties=("soak",),
                    max_examples=options.examples,
                    world_sizes=machine.world_sizes,
                ),
                emit,
                session=session,
            )
    if summary.failure or summary.interrupted:
        raise SystemExit(f"the run ended early: {summary.failure or summary.interrupted}")
    return summary, tally, time.perf_counter() - started


@dataclass(frozen=True, slots=True, kw_only=True)
class AllThatPasses(Property):
    """Cases of every property that can show no known defect and ask for no refusal."""

    torch: str
    backend: str

    def strategy(self, scope: Scope) -> SearchStrategy[CaseSpec]:
        from fsdpfuzz.strategies import FOCUSES, cases

        folder = default_known()
        known = Known.load(folder) if folder is not None else Known()

        def passes(case: CaseSpec) -> bool:
            showing = known.showing(case, torch=self.torch, backend=self.backend)
            return not showing and not foreseen_rejections(anatomy(case))

        every = [
            cases(focus=focus, apis=scope.apis, world_sizes=scope.world_sizes) for focus in FOCUSES
        ]
        return st.one_of(every).filter(passes)


def growth(usage: Sequence[Usage], warm_up: int) -> dict[str, Any]:
    """From the end of the warm-up to the last case."""
    first, last = usage[warm_up : warm_up + WINDOW], usage[-WINDOW:]
    rss = [statistics.median(item.rss for item in part) for part in (first, last)]
    fds = [max(item.fds for item in part) for part in (first, last)]
    threads = [max(item.threads for item in part) for part in (first, last)]
    grown = rss[1] / rss[0] - 1
    return {
        "rss_mb": [round(value / 2**20, 1) for value in rss],
        "rss_growth": round(grown, 4),
        "fds": fds,
        "threads": threads,
        "held": grown < MAX_GROWTH and fds[1] <= fds[0] and threads[1] <= threads[0],
    }


def show(result: dict[str, Any]) -> None:
    """The table."""
    title = (
        f"{result['examples']} cases in {result['seconds']} s, torch {result['torch']}, "
        f"{result['backend']}, {result['pool_restarts']} restarts"
    )
    table = Table(title=title)
    for name in ("process", "cases", "MB", "growth", "descriptors", "threads", "held"):
        table.add_column(name)
    for row in result["processes"]:
        table.add_row(
            row["process"],
            str(row["cases"]),
            " → ".join(map(str, row["rss_mb"])),
            f"{row['rss_growth']:+.1%}",
            " → ".join(map(str, row["fds"])),
            " → ".join(map(str, row["threads"])),
            "yes" if row["held"] else "[bold red]no[/]",
        )
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())

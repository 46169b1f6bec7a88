"""What fuzzing costs beyond the training itself, and what a process per case would cost.

In one run, on the same cases:

    overhead   time of the run over the time its ranks spend building and training, on clean
               cases, and what the rest consists of; at most 1.15
    per case   cases a second against fresh processes for each case; at least 20 times as many
    restart    until fresh ranks have answered, after a rank's death and after a hang; at most
               0.6 s after a death on gloo, 3 s on NCCL
    growth     seconds for one case against world size and number of units

    python benchmarks/throughput.py [--backend auto|gloo|nccl] [--examples N] [--json FILE]

Other work on the same cores lengthens some cases and not others: where it cannot be avoided,
take more rounds. The exit code is 1 if a bound is not held.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from benchmarks import restart
from benchmarks.meter import IN_CONTROLLER, IN_RANKS, Meter, Timed
from benchmarks.per_case import run_in_fresh_processes
from fsdpfuzz.case import Backward, CaseSpec, Forward, Step, ZeroGrad, chain
from fsdpfuzz.loop import (
    PROPERTIES,
    Resolved,
    RunSettings,
    SessionSettings,
    default_known,
    profile_named,
    resolve_machine,
)
from fsdpfuzz.pool import Pool, probe_machine, sigterm_exits

MAX_OVERHEAD = 1.15
MIN_FASTER = 20.0
MAX_RESTART = {"gloo": 0.6, "nccl": 3.0}
UNITS = (1, 2, 4, 8, 16)
GROWTH_TIMES = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line."""

    backend: str
    examples: int
    rounds: int
    fresh: int
    restarts: int
    seed: int
    json: Path | None


def main() -> int:
    with sigterm_exits():
        return _main(options())


def options() -> Options:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backend", choices=("auto", "gloo", "nccl"), default="auto")
    parser.add_argument("--examples", type=int, default=150, help="cases a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fresh", type=int, default=5, help="cases to run in fresh processes")
    parser.add_argument("--restarts", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    return Options(**vars(parser.parse_args()))


def _main(chosen: Options) -> int:
    machine = resolve_machine(chosen.backend, (2, 3, 4))
    console = Console()
    load = os.getloadavg()[0]
    rounds = [
        Meter().run(_settings(chosen, machine, Path(folder)))
        for _ in range(chosen.rounds)
        for folder in [tempfile.mkdtemp(prefix="fsdpfuzz-benchmark-")]
    ]
    overhead = _overhead(rounds)
    fresh = _fresh(rounds, machine, chosen.fresh)
    again = restart.measure(machine.backend, 2, chosen.restarts)
    growth = _growth(machine)
    bounds = {
        "overhead": (overhead["ratio"], "<=", MAX_OVERHEAD),
        "faster_than_fresh_processes": (fresh["faster"], ">=", MIN_FASTER),
        "restart_after_death": (
            again["after_death"]["restart_seconds"],
            "<=",
            MAX_RESTART[machine.backend],
        ),
    }
    held = {
        name: seen <= bound if relation == "<=" else seen >= bound
        for name, (seen, relation, bound) in bounds.items()
    }
    result = {
        "torch": machine.torch,
        "backend": machine.backend,
        "cores": probe_machine().cores,
        "gpus": list(probe_machine().gpu_names),
        "load": [round(load, 2), round(os.getloadavg()[0], 2)],
        "seed": chosen.seed,
        "overhead": overhead,
        "fresh_processes": fresh,
        "restart": again,
        "growth": growth,
        "bounds": {name: [*bounds[name], held[name]] for name in bounds},
    }
    _show(console, result)
    if chosen.json:
        chosen.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if all(held.values()) else 1


def _settings(chosen: Options, machine: Resolved, output: Path) -> RunSettings:
    return RunSettings(
        session=SessionSettings(
            backend=machine.backend,
            profile=profile_named("dev"),
            output=output,
            known=default_known(),
            seed=chosen.seed,
            offers=machine.offers,
        ),
        properties=tuple(PROPERTIES),
        max_examples=chosen.examples,
    )


def _overhead(rounds: Sequence[Sequence[Timed]]) -> dict[str, Any]:
    """Over the clean cases of each round; the figures are medians over the rounds."""
    parts = (*IN_RANKS, *IN_CONTROLLER)
    shares = [
        {part: sum(row.share(part) for row in rows) / _work(rows) for part in parts}
        for rows in rounds
    ]
    ratios = [sum(row.whole for row in rows) / _work(rows) for rows in rounds]
    rates = [len(rows) / sum(row.whole for row in rows) for rows in rounds]
    every = [row for rows in rounds for row in rows]
    return {
        "ratio": _median(ratios),
        "ratios": [round(ratio, 4) for ratio in ratios],
        "clean_cases": [len(rows) for rows in rounds],
        "cases_per_second": _median(rates),
        "work_seconds": _median([row.work for row in every]),
        "shares": {part: _median([share[part] for share in shares]) for part in parts},
    }


def _work(rows: Sequence[Timed]) -> float:
    return sum(row.work for row in rows)


def _fresh(rounds: Sequence[Sequence[Timed]], machine: Resolved, count: int) -> dict[str, Any]:
    """A few of the cases once more, each in fresh processes."""
    clean = rounds[0]
    chosen = [clean[i * len(clean) // count] for i in range(count)]
    rows = []
    for row in chosen:
        times = [
            again.whole for rows in rounds for again in rows if again.case == row.case
        ]  # one of each round
        seconds, losses = run_in_fresh_processes(row.case, machine.backend)
        if losses != row.losses:
            raise SystemExit(f"fresh ranks gave other losses: {losses}, not {row.losses}")
        rows.append((statistics.median(times), seconds))
    return {
        "cases": count,
        "pool_seconds": _median([pool for pool, _ in rows]),
        "fresh_seconds": _median([seconds for _, seconds in rows]),
        "faster": round(sum(seconds for _, seconds in rows) / sum(pool for pool, _ in rows), 1),
    }


def _growth(machine: Resolved) -> list[dict[str, Any]]:
    found = []
    for world_size in machine.world_sizes:
        with Pool(world_size, machine.backend) as pool:
            for api, units in itertools.product(("fsdp1", "fsdp2"), UNITS):
                case = _chain(api, units, world_size)
                pool.run(case)
                seen, work = [], []
                for _ in range(GROWTH_TIMES):
                    started = time.perf_counter()
                    observation = pool.run(case)
                    seen.append(time.perf_counter() - started)
                    if not observation.clean:
                        raise SystemExit(f"a clean case failed: {observation.raised()}")
                    reports = [report for report in observation.reports if report is not None]
                    work.append(max(report.work_seconds for report in reports))
                found.append(
                    {
                        "world_size": world_size,
                        "api": api,
                        "units": units,
                        "seconds": _median(seen),
                        "work_seconds": _median(work),
                    }
                )
    return found


def _chain(api: str, units: int, world_size: int) -> CaseSpec:
    """``Linear(5, 5)`` after ``Linear(5, 5)``, each a unit, in a root; trained for 3 steps."""
    program = (Forward(), Backward(), Step(), ZeroGrad()) * 3
    return chain(api, (5,) * (units + 1), range(units), world_size, program)


def _median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 4)


def _show(console: Console, result: dict[str, Any]) -> None:
    overhead, fresh, again = result["overhead"], result["fresh_processes"], result["restart"]
    title = f"torch {result['torch']}, {result['backend']}, {result['cores']} cores"
    table = Table(title=f"{title}, load {result['load'][0]} to {result['load'][1]}")
    for name in ("measured", "figure", "bound", "held"):
        table.add_column(name)
    for name, (seen, relation, bound, held) in result["bounds"].items():
        table.add_row(name.replace("_", " "), f"{seen}", f"{relation} {bound}", _yes(held))
    table.add_section()
    table.add_row("overhead, each round", ", ".join(map(str, overhead["ratios"])))
    table.add_row("cases a second", f"{overhead['cases_per_second']}")
    table.add_row("a case in fresh processes, s", f"{fresh['fresh_seconds']}")
    table.add_row("restart after a hang, s", f"{again['after_hang']['restart_seconds']}")
    for where, parts in (("ranks", IN_RANKS), ("controller", IN_CONTROLLER)):
        table.add_section()
        for part in parts:
            table.add_row(f"{where}: {part} / work", f"{overhead['shares'][part]:.1%}")
    console.print(table)
    growth = Table(title="seconds a case: n units of Linear(5, 5), 3 steps; in brackets, training")
    growth.add_column("ranks, api")
    for units in UNITS:
        growth.add_column(f"n = {units}", justify="right")
    for (ranks, api), rows in itertools.groupby(
        result["growth"], key=lambda row: (row["world_size"], row["api"])
    ):
        cells = [f"{row['seconds']:.3f} ({row['work_seconds']:.3f})" for row in rows]
        growth.add_row(f"{ranks}, {api}", *cells)
    console.print(growth)


def _yes(held: bool) -> str:
    return "yes" if held else "[bold red]no[/]"


if __name__ == "__main__":
    sys.exit(main())

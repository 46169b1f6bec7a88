"""How many faults in torch the fuzzer finds, how soon, and how many of them the seeds alone find.

    python benchmarks/sensitivity.py [--jobs N] [--examples 400] [--only ID...] [--every N]
        [--seeds-only] [--without-seeds] [--json FILE] [--max-seconds S] [--page FILE]

Each fault of `benchmarks.faults` is injected in the ranks of a run of its own. The exit code is 1
if fewer are found than must be, or later, or with more findings or larger cases; 2 if there was
no time for all of them: the same command then goes on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from benchmarks.faults import FAULTS, Fault
from benchmarks.many_injections import Bench, Job, Record, add_options
from benchmarks.pages import faults_page

INJECTIONS = "benchmarks.faults.injections"
CONTROL = "(no fault)"
FOUND_SHARE = 0.95
MEDIAN_EXAMPLES = 30
MEDIAN_FINDINGS = 1
MOST_MODULES = 3


def jobs_for(faults: Iterable[Fault], options: argparse.Namespace) -> list[Job]:
    """The hunts, one without a fault first, then the seeds."""
    faults = list(faults)
    jobs: list[Job] = []
    if not options.seeds_only:
        sizes = sorted({ranks_for(item) for item in faults})
        jobs += [Job(id=f"{CONTROL} {n}", kind="hunt", injection=None, world_size=n) for n in sizes]
        jobs += [_job(item, "hunt") for item in faults]
    if not options.without_seeds:
        jobs += [_job(item, "seeds") for item in faults]
    return jobs


def _job(item: Fault, kind: Any) -> Job:
    return Job(
        id=item.id, kind=kind, injection=f"{INJECTIONS}:{item.id}", world_size=ranks_for(item)
    )


def ranks_for(item: Fault) -> int:
    """How many ranks show it."""
    return 4 if item.needs == "world size 4" else 2


def chosen_faults(options: argparse.Namespace) -> list[Fault]:
    """Those asked for, without those that this backend, or nothing, can show."""
    unknown = set(options.only) - set(FAULTS)
    if unknown:
        raise SystemExit(f"there is no fault {', '.join(sorted(unknown))}")
    wanted = [FAULTS[name] for name in options.only] or list(FAULTS.values())
    shown = [
        item
        for item in wanted
        if not item.unseen
        and item.needs != "tensor parallelism"
        and (item.needs != "gpu" or options.backend == "nccl")
    ]
    return shown[:: options.every]


def summed_up(faults: list[Fault], bench: Bench) -> dict[str, Any]:
    """The figures that the bounds are about."""
    hunts = [bench.records[f.id, "hunt"] for f in faults if (f.id, "hunt") in bench.records]
    seeds = [bench.records[f.id, "seeds"] for f in faults if (f.id, "seeds") in bench.records]
    found = [record for record in hunts if record["status"] == "found"]
    # One that is missed would take more examples than all there were.
    needed = [r["found_after"] if r["status"] == "found" else r["settings"]["examples"] + 1
              for r in hunts]  # fmt: skip
    return {
        "hunted": len(hunts),
        "found": len(found),
        "share": len(found) / len(hunts) if hunts else 0.0,
        "examples": _median(needed),
        "seconds": _median(r["found_seconds"] for r in found),
        "findings": _median(r["findings"] for r in found),
        "modules": _median(r["modules"] for r in found),
        "operations": _median(r["operations"] for r in found),
        "tries": _median(r["tries"] for r in found),
        "large": [f.id for f in faults if _is_large(f, bench.records.get((f.id, "hunt")))],
        "unscripted": [r["id"] for r in found if not r["script"]],
        "seeded": len(seeds),
        "by_seeds": sum(record["status"] == "found" for record in seeds),
    }


def _is_large(item: Fault, hunted: Record | None) -> bool:
    if hunted is None or hunted["status"] != "found":
        return False
    modules: int = hunted["modules"]
    steps: int = hunted["steps"]
    return modules > MOST_MODULES or steps > item.steps


def _median(values: Iterable[float]) -> float:
    numbers = list(values)
    return float(median(numbers)) if numbers else 0.0


def broken_bounds(figures: dict[str, Any]) -> list[str]:
    """Which of the bounds do not hold, in words."""
    broken: list[str] = []
    if not figures["hunted"]:
        return broken
    if figures["share"] < FOUND_SHARE:
        broken.append(f"{figures['share']:.1%} found, not {FOUND_SHARE:.0%}")
    if figures["examples"] > MEDIAN_EXAMPLES:
        broken.append(f"a median of {figures['examples']:g} examples, not {MEDIAN_EXAMPLES}")
    if figures["findings"] > MEDIAN_FINDINGS:
        broken.append(f"a median of {figures['findings']:g} findings, not {MEDIAN_FINDINGS}")
    if figures["large"]:
        broken.append(f"cases too large: {', '.join(figures['large'])}")
    return broken


def show(faults: list[Fault], bench: Bench, console: Console) -> None:
    """A row for each fault that was found, a line for each that was not, then the figures."""
    table = Table("fault", "examples", "s", "caught by", "findings", "modules", "ops", "tries",
                  "script", "seeds")  # fmt: skip
    misses: list[tuple[Fault, Record]] = []
    for item in faults:
        hunted = bench.records.get((item.id, "hunt"))
        seeded = bench.records.get((item.id, "seeds"))
        by_seeds = "" if seeded is None else seeded["status"]
        if hunted is not None and hunted["status"] == "found":
            table.add_row(
                item.id,
                str(hunted["found_after"]),
                f"{hunted['found_seconds']:.0f}",
                hunted["invariant"],
                str(hunted["findings"]),
                str(hunted["modules"]),
                str(hunted["operations"]),
                str(hunted["tries"]),
                "confirmed" if hunted["script"] else "no",
                by_seeds,
            )
        elif hunted is not None:
            misses.append((item, hunted))
        elif seeded is not None:
            table.add_row(item.id, "", "", seeded.get("invariant", ""), *[""] * 5, by_seeds)
    console.print(table)
    for item, record in misses:
        reason = record.get("reason") or record.get("key") or ", ".join(record.get("known", ()))
        console.print(f"{record['status']}: {item.id} ({item.area}): {item.says}", markup=False)
        console.print(f"    {record.get('examples', 0)} examples; {reason[:300]}", markup=False)


def show_figures(figures: dict[str, Any], faults: list[Fault], console: Console) -> None:
    """The figures in two lines."""
    if figures["hunted"]:
        console.print(
            f"{figures['found']} of {figures['hunted']} faults found ({figures['share']:.1%}); "
            f"medians: {figures['examples']:g} examples, {figures['seconds']:g} s, "
            f"{figures['findings']:g} findings, {figures['modules']:g} modules, "
            f"{figures['operations']:g} operations, {figures['tries']:g} runs to reduce; "
            f"{figures['found'] - len(figures['unscripted'])} scripts confirmed"
        )
    if figures["seeded"]:
        console.print(f"{figures['by_seeds']} of {figures['seeded']} by the seeds alone")
    unshown = len(FAULTS) - len(faults)
    if unshown:
        console.print(f"{unshown} faults not asked for, or not to be shown on this backend")
    for item in FAULTS.values():
        if item.unseen:
            console.print(f"not to be seen: {item.id}: {item.unseen}", markup=False)


def progress(console: Console, total: int) -> Callable[[Job, Record], None]:
    """Says of each job what came of it."""
    done = 0

    def tell(job: Job, record: Record) -> None:
        nonlocal done
        done += 1
        what = record.get("key") or record.get("reason", "")
        after = record.get("found_after", record.get("examples", record.get("seeds", "")))
        line = f"[{done}/{total}] {job.kind} {job.id}: {record['status']} {after} {what}"
        console.print(line[:200], markup=False, highlight=False)

    return tell


def main() -> int:
    """Runs what has no record yet, and shows all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_options(parser, Path(".fsdpfuzz/sensitivity.jsonl"))
    parser.add_argument("--every", type=int, default=1, help="each so-manieth fault alone")
    options = parser.parse_args()
    console = Console(width=170)
    faults = chosen_faults(options)
    bench = Bench(options.json, options)
    jobs = jobs_for(faults, options)
    complete = bench.run(jobs, progress(console, len(jobs)))
    show(faults, bench, console)
    for (name, _), record in bench.records.items():
        if name.startswith(CONTROL) and record["status"] == "found":
            console.print(f"without any fault: {', '.join(record['keys'])}", markup=False)
    figures = summed_up(faults, bench)
    show_figures(figures, faults, console)
    if options.page is not None:
        options.page.write_text(faults_page(faults, bench, figures))
    broken = broken_bounds(figures)
    for line in broken:
        console.print(f"not held: {line}", markup=False)
    if not complete:
        console.print("there was no time for all; the same command goes on")
        return 2
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

"""Mutants of FSDP's own files: how many the fuzzer kills, and how many the seeds alone do.

    python benchmarks/mutants.py [--number 300] [--sample-seed 12] [--jobs N] [--examples 300]
        [--only ID...] [--seeds-only] [--without-seeds] [--json FILE] [--max-seconds S]
        [--page FILE]
    python benchmarks/mutants.py --list

A random sample of all mutants on lines that the fuzzer reaches is injected, one after the other.
That of a release in ``benchmarks/mutants.json`` is fixed; for another the lines that are reached
are found out first, and kept beside the records. Survivors are shown with what was changed, and
with what a reader has said of them in ``benchmarks/survivors.json``: those of which nothing can be
seen are left out of the score.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from packaging.version import Version
from rich.console import Console

from benchmarks.many_injections import ROOT, Bench, Job, Record, add_options
from benchmarks.mutation import MODULES, REACHED, Mutant, all_mutants
from benchmarks.pages import mutants_page
from benchmarks.survivors import Reading, readings, set_aside

INJECTIONS = "benchmarks.mutation"
SAMPLES = Path(__file__).with_name("mutants.json")
"""Of a release, the ids of the mutants that are injected."""
SCORE = 0.85
RUNS_TO_REACH = 300
"""Examples after which the lines that are reached hardly grow any more."""


def reached_lines(options: argparse.Namespace, folder: Path) -> dict[str, set[int]]:
    """Lines of each file that the seeds and some examples run; found out once for each torch."""
    path = folder / f"reached-{version('torch')}.json"
    if not path.exists():
        seen = folder / "reached"
        seen.mkdir(parents=True, exist_ok=True)
        for kind in ("seeds", "kill"):
            words = [sys.executable, "-m", "benchmarks.one_injection", kind]
            words += ["--inject", f"{INJECTIONS}:trace", "--examples", str(RUNS_TO_REACH)]
            words += ["--seconds", "400", "--seed", str(options.seed), "--backend", "gloo"]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", REACHED: str(seen)}
            environment["PYTHONPATH"] = os.pathsep.join(
                [str(ROOT), os.environ.get("PYTHONPATH", "")]
            )
            subprocess.run(words, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
        lines: dict[str, set[int]] = {}
        for file in seen.iterdir():
            for name, numbers in json.loads(file.read_bytes()).items():
                lines.setdefault(name, set()).update(numbers)
        path.write_text(json.dumps({name: sorted(found) for name, found in lines.items()}))
    document = json.loads(path.read_bytes())
    return {name: set(found) for name, found in document.items()}


def sample(options: argparse.Namespace, folder: Path) -> list[Mutant]:
    """The same ones for the same torch, number and seed of the sample.

    Lines that are reached move with each change of what is drawn, and with them a sample of what
    lies on them: scores would be of other mutants each time. So it was drawn once for a release.

    Raises:
        SystemExit: the file names mutants that this torch does not have.
    """
    release = Version(version("torch")).base_version
    fixed = json.loads(SAMPLES.read_bytes()).get(release)
    mutants = list(all_mutants())
    if fixed is not None:
        if unknown := set(fixed) - {mutant.id for mutant in mutants}:
            raise SystemExit(f"{SAMPLES}: torch {release} has no mutants {sorted(unknown)}")
        mutants = [mutant for mutant in mutants if mutant.id in fixed]
    else:
        reached = reached_lines(options, folder)
        mutants = [m for m in mutants if m.line in reached.get(m.module, ())]
    chosen = random.Random(options.sample_seed).sample(mutants, min(options.number, len(mutants)))
    return sorted(chosen, key=lambda mutant: (mutant.module, mutant.line, mutant.id))


def show(
    mutants: list[Mutant], bench: Bench, read: Mapping[str, Reading], console: Console
) -> float:
    """The survivors, what was killed in each module, and the score of all."""
    killed = {"kill": 0, "seeds": 0}
    for module in MODULES:
        own = [m for m in mutants if m.module == module]
        for kind, seen in killed.items():
            records = [bench.records.get((m.id, kind)) for m in own]
            ran = [record for record in records if record is not None]
            dead = sum(record["status"] == "found" for record in ran)
            killed[kind] = seen + dead
            if ran:
                console.print(f"{module}: {dead} of {len(ran)} killed ({kind})", highlight=False)
    for mutant in mutants:
        record = bench.records.get((mutant.id, "kill"))
        if record is not None and record["status"] != "found":
            console.print(f"{record['status']}: {mutant}", markup=False, highlight=False)
            one = read.get(mutant.id)
            words = "    not read yet" if one is None else f"    {one.kind}: {one.why}"
            console.print(words, markup=False, highlight=False)
    aside = set_aside(bench, read)
    mutants = [m for m in mutants if m.id not in aside]
    total = sum((m.id, "kill") in bench.records for m in mutants)
    seeded = sum((m.id, "seeds") in bench.records for m in mutants)
    if total:
        share = f"{killed['kill'] / total:.1%}"
        console.print(f"{killed['kill']} of {total} killed ({share}); of {len(aside)} more nothing "
                      "is to be seen")  # fmt: skip
    if seeded:
        console.print(f"{killed['seeds']} of {seeded} by the seeds alone")
    return killed["kill"] / total if total else 1.0


def progress(console: Console, total: int) -> Callable[[Job, Record], None]:
    """Says of each mutant what became of it."""
    done = 0

    def tell(job: Job, record: Record) -> None:
        nonlocal done
        done += 1
        what = record.get("key") or record.get("reason", "")
        line = f"[{done}/{total}] {job.kind} {job.id}: {record['status']} {what}"
        console.print(line[:200], markup=False, highlight=False)

    return tell


def main() -> int:
    """Runs what has no record yet. The score counts survivors that nobody has read."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--number", type=int, default=300)
    parser.add_argument("--sample-seed", type=int, default=12)
    parser.add_argument("--list", action="store_true", help="show the sample and run nothing")
    add_options(parser, Path(".fsdpfuzz/mutants.jsonl"))
    parser.set_defaults(examples=300, after=0)
    options = parser.parse_args()
    console = Console(width=170)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    mutants = sample(options, options.json.resolve().parent)
    if options.list:
        for mutant in mutants:
            console.print(str(mutant), markup=False, highlight=False)
        return 0
    wanted = [m for m in mutants if not options.only or m.id in options.only]
    jobs = []
    if not options.seeds_only:
        jobs += [Job(id=m.id, kind="kill", injection=f"{INJECTIONS}:{m.id}") for m in wanted]
    if not options.without_seeds:
        jobs += [Job(id=m.id, kind="seeds", injection=f"{INJECTIONS}:{m.id}") for m in wanted]
    bench = Bench(options.json, options)
    complete = bench.run(jobs, progress(console, len(jobs)))
    read = readings(version("torch"))
    score = show(wanted, bench, read, console)
    if options.page is not None:
        options.page.write_text(mutants_page(wanted, bench, read, set_aside(bench, read)))
    if not complete:
        console.print("there was no time for all; the same command goes on")
        return 2
    return 1 if score < SCORE else 0


if __name__ == "__main__":
    sys.exit(main())

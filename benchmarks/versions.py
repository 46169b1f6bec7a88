"""Which known defect shows on which torch: one scratch environment after the other.

    python benchmarks/versions.py [--torch 2.15.0 ...] [--folder DIR] [--keep] [--only PART ...]
                                  [--defect ID ...]

For each release it makes an environment with that torch and numpy in DIR, and there runs the
smallest case of each known defect, 300 examples and the documents. What came of it goes into
``benchmarks/versions.json``, release by release, and the matrix into ``benchmarks/versions.md``.
An environment is removed when its release is done, unless it was there before or ``--keep`` is
given; one takes 5 to 8 GB while it is there. ``--defect`` looks at some known defects alone, and
leaves what was seen of others as it is. The exit code is 1 where an entry has to be changed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from packaging.version import Version

from fsdpfuzz.known import Checked, Known, check_known
from fsdpfuzz.loop import (
    Resolved,
    Session,
    SessionSettings,
    default_known,
    lacking_in_torch,
    resolve_machine,
)
from fsdpfuzz.pool import Interpreter, interpreter_at, sigterm_exits
from fsdpfuzz.seeds import SEEDS

ROOT = Path(__file__).resolve().parents[1]
RELEASES = (
    "2.7.1",
    "2.8.0",
    "2.9.1",
    "2.10.0",
    "2.11.0",
    "2.12.1",
    "2.13.0",
    "2.14.1",
    "2.15.0",
)
PARTS = ("known", "examples", "documents", "api")
ROOM = 12 << 30
"""Bytes that must be free before an environment is made."""
SIGNS = {"shows": "Y", "passes": "-", "otherwise": "X", "not run": ""}

Row = dict[str, Any]


def environment(folder: Path, release: str) -> Path:
    """The Python of an environment with that torch and numpy, made if it is not there."""
    python = folder / release / "bin" / "python"
    if python.exists():
        return python
    free = shutil.disk_usage(folder).free
    if free < ROOM:
        raise SystemExit(f"{folder}: {free >> 30} GiB are free, {ROOM >> 30} are needed")
    for command in (
        [sys.executable, "-m", "venv", str(python.parents[1])],
        [str(python), "-m", "pip", "install", "--quiet", f"torch=={release}", "numpy"],
    ):
        subprocess.run(command, check=True)
    return python


def environments(
    releases: Iterable[str], folder: Path | None, *, keep: bool
) -> Iterator[tuple[str, Path]]:
    """Each release with the Python of its environment, which is removed before the next is made.

    Not if it was there before, or with ``keep``.
    """
    with tempfile.TemporaryDirectory() as scratch, sigterm_exits():
        place = folder or Path(scratch)
        place.mkdir(parents=True, exist_ok=True)
        for release in releases:
            there = (place / release).exists()
            try:
                yield release, environment(place, release)
            finally:
                if not there and not keep:
                    shutil.rmtree(place / release, ignore_errors=True)


def known_of(session: Session, defects: Collection[str] = ()) -> Row:
    """What the smallest case of each known defect does, or of some of them."""
    path = default_known()
    checks: list[Checked] = []
    if path is not None:
        known = Known.load(path)
        if unknown := set(defects).difference(known.defects):
            raise SystemExit(f"--defect {' '.join(sorted(unknown))}: not in {path}")
        chosen = {name: d for name, d in known.defects.items() if not defects or name in defects}
        for checked in check_known(
            Known(chosen),
            lambda case: session.examine(case).verdict.findings,
            torch=session.torch,
            backend=session.settings.backend,
            lacks=lambda case: lacking_in_torch(case, session.settings.offers),
        ):
            checks.append(checked)
            print(f"  {checked.name}: {checked.case} {checked.detail}", flush=True)
    return {
        "known": {checked.name: checked.case for checked in checks},
        "stale": {checked.name: checked.detail for checked in checks if checked.stale},
    }


def documents_of(session: Session) -> Row:
    """What came of the documents' parametrisations that can run here."""
    counts: Counter[str] = Counter()
    new: list[str] = []
    for seed in SEEDS:
        case = seed.on(session.settings.backend)
        if case is None:
            counts["skipped"] += 1
            continue
        examined = session.examine(case)
        known = examined.verdict.findings and not examined.news
        counts["known" if known else examined.verdict.status] += 1
        new += [f"{seed.name}: {finding.key}" for finding in examined.news]
    return {"documents": dict(counts), "documents_new": new}


def examples_of(python: Path, folder: Path, examples: int, seed: int) -> Row:
    """What a run of that many examples found."""
    result = folder / "run.json"
    words = [sys.executable, "-m", "fsdpfuzz", "run", "--python", str(python)]
    words += ["--max-examples", str(examples), "--seed", str(seed), "--json", str(result)]
    began = time.monotonic()
    subprocess.run([*words, "--output", str(folder / "out")], check=False, cwd=ROOT)
    told = json.loads(result.read_text())
    names = ("examples", "passed", "rejected", "vacuous", "failed", "harness_errors", "seed")
    return {
        "examples": {name: told[name] for name in names},
        "seconds": round(time.monotonic() - began),
        "examples_known": sorted({f["known"] for f in told["findings"] if f["known"]}),
        "examples_new": sorted(f["key"] for f in told["findings"] if not f["known"]),
    }


def api_of(python: Path) -> Row:
    """What this torch offers to users of FSDP."""
    done = subprocess.run(
        [str(python), str(ROOT / "benchmarks" / "public_api.py")],
        capture_output=True,
        check=True,
        text=True,
    )
    return {"api": json.loads(done.stdout)}


def row_of(
    python: Path, parts: Sequence[str], examples: int, seed: int, defects: Collection[str] = ()
) -> Row:
    """Everything about one release."""
    ranks_on: Interpreter = interpreter_at(python)
    machine = resolve_machine("auto", (2,), ranks_on)
    row: Row = {"torch": machine.torch, "backend": machine.backend}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "api" in parts:
            row |= api_of(python)
        if "known" in parts:
            with Session(_settings(machine, folder, ranks_on)) as session:
                row |= known_of(session, defects)
        if "documents" in parts:
            settings = _settings(machine, folder, ranks_on, default_known())
            with Session(settings) as session:
                row |= documents_of(session)
        if "examples" in parts:
            row |= examples_of(python, folder, examples, seed)
    return row


def _settings(
    machine: Resolved, folder: Path, python: Interpreter, known: Path | None = None
) -> SessionSettings:
    return SessionSettings(
        backend=machine.backend,
        torch=machine.torch,
        offers=machine.offers,
        output=folder,
        python=python,
        known=known,
        reruns=0,
    )


def matrix(rows: Mapping[str, Row]) -> str:
    """The rows as a page: defects, then what was run besides."""
    releases = sorted(rows, key=Version)
    names = sorted({name for row in rows.values() for name in row.get("known", {})})
    lines = [
        "# Known defects over releases of torch",
        "",
        "Made by `python benchmarks/versions.py` on gloo with 2 ranks: the smallest case of each",
        "entry of `corpus/known`. Y: it shows as the entry says; -: it does not fail; X: it fails",
        "in another way; empty: not run.",
        "",
        *table(
            ["known defect", *releases],
            (
                [name, *(SIGNS[rows[r].get("known", {}).get(name, "not run")] for r in releases)]
                for name in names
            ),
        ),
        "",
        "What else was run:",
        "",
        *table(
            ["torch", "examples", "passed", "known defects met", "new", "documents"],
            (_besides(release, rows[release]) for release in releases),
        ),
    ]
    return "\n".join(lines) + "\n"


def _besides(release: str, row: Row) -> list[str]:
    run = row.get("examples", {})
    counts = ", ".join(f"{n} {name}" for name, n in sorted(row.get("documents", {}).items()))
    new = [*row.get("examples_new", ()), *row.get("documents_new", ())]
    figures = [str(run.get("examples", "")), str(run.get("passed", ""))]
    met = str(len(row["examples_known"])) if run else ""
    told = "; ".join(f"`{key[:90]}`" for key in new) or ("none" if run else "")
    return [release, *figures, met, told, counts]


def table(head: list[str], body: Iterable[list[str]]) -> list[str]:
    """A table in Markdown, line by line."""
    rows = [head, ["---"] * len(head), *body]
    return [f"| {' | '.join(row)} |" for row in rows]


def write(target: Path, rows: Mapping[str, Row]) -> None:
    """Both files, the page beside the figures."""
    target.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
    target.with_suffix(".md").write_text(matrix(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    """The releases, one after the other; what came of each is written at once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--torch", nargs="+", default=list(RELEASES), metavar="RELEASE")
    parser.add_argument("--folder", type=Path, help="where environments are made")
    parser.add_argument("--keep", action="store_true", help="leave the environments there")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument(
        "--defect",
        nargs="+",
        default=[],
        metavar="ID",
        help="look at these known defects, and nothing else",
    )
    parser.add_argument("--examples", type=int, default=300)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "versions.json")
    args = parser.parse_args(arguments)
    stale = 0
    for release, python in environments(args.torch, args.folder, keep=args.keep):
        print(f"torch {release}", flush=True)
        parts = ["known"] if args.defect else args.only
        row = row_of(python, parts, args.examples, args.seed, args.defect)
        stale += len(row.get("stale", ()))
        rows: dict[str, Row] = json.loads(args.json.read_text()) if args.json.exists() else {}
        before = rows.get(release, {})
        if args.defect:
            # Of the others stands what was seen before.
            for part in ("known", "stale"):
                others = before.get(part, {}).items()
                row[part] = {**{n: v for n, v in others if n not in args.defect}, **row[part]}
        rows[release] = {**before, **row}
        write(args.json, rows)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())

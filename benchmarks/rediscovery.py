"""Which real bugs of old releases are found again, by drawing alone.

    python benchmarks/rediscovery.py [--torch 2.8.0 ...] [--folder DIR] [--keep] [--output DIR]
    python benchmarks/rediscovery.py --python OTHER/bin/python [--seeds 5 6 7 8 --jobs 4]
        [--max-seconds S]

``benchmarks/rediscovery.json`` holds the bugs: the releases that have them, and the known defects
(``corpus/known``) or patterns of keys under which they show. For each release an environment is
made as ``benchmarks/versions.py`` makes it, or one that is there is taken, and cases are drawn
there by runs that know nothing of these bugs: none is kept off or explained away. The other known
defects are known, as to anybody who looks for what is new. A finding is then looked up in the
table; the first for each bug gets its script, which is run. What came of it goes into
``benchmarks/rediscovered.json``, release by release, and the page ``benchmarks/rediscovered.md``.
Cases and scripts go to ``--output``. The exit code is 0: what is not found is told.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec
from packaging.version import Version

from benchmarks.versions import RELEASES, ROOT, environments, table
from fsdpfuzz.case import CaseSpec
from fsdpfuzz.corpus import read_entry
from fsdpfuzz.known import Known
from fsdpfuzz.loop import (
    APIS,
    PROFILES,
    Event,
    FindingDone,
    FindingMet,
    Found,
    RunSettings,
    Script,
    Session,
    SessionSettings,
    Summary,
    default_known,
    properties_named,
    resolve_machine,
    run,
    write_script,
)
from fsdpfuzz.pool import interpreter_at
from fsdpfuzz.reduce import Ablation

BUGS = ROOT / "benchmarks" / "rediscovery.json"
RESULT = ROOT / "benchmarks" / "rediscovered.json"
SHRINK_SECONDS = 15.0
"""For each finding: without known defects a run has many."""


class Bug(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A real bug: where it is told, the releases that have it, and how it shows."""

    id: str
    link: str
    what: str
    since: str | None
    """The first release that has it; None where that is older than all that are tried."""
    gone: str | None
    """The first that has it no more; None where there is none yet."""
    known: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()

    def lives_in(self, release: str) -> bool:
        """Whether a release has it, of whatever build."""
        version = Version(Version(release).base_version)
        if self.since is not None and version < Version(self.since):
            return False
        return self.gone is None or version < Version(self.gone)

    def shown_by(self, found: Found, case: CaseSpec, defects: Known) -> bool:
        """Whether a finding is this bug."""
        explained = (defects.defects[name].explains(case, found.finding) for name in self.known)
        keys = (found.finding.key, *found.also)
        return any(explained) or any(re.search(p, key) for p in self.keys for key in keys)


class Rediscovered(msgspec.Struct, frozen=True, kw_only=True):
    """How a bug was found again."""

    key: str
    examples: int
    script: str
    confirmed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How long each run draws: examples, and seconds where there are bounds on them."""

    examples: int
    seconds: float | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one release. ``examples`` are those of all seeds, and ``seconds`` those of the
    longest of their runs, which are side by side; a bug was found after as many examples as with
    the seed that found it first."""

    torch: str
    seeds: tuple[int, ...]
    examples: int
    seconds: int
    found: dict[str, Rediscovered]
    missed: tuple[str, ...]


def bugs_of(path: Path = BUGS) -> tuple[Bug, ...]:
    """The table; an error names what is wrong with it."""
    return msgspec.json.decode(path.read_bytes(), type=tuple[Bug, ...])


class Search:
    """Looks up what a run finds, and has scripts written for the first finding of each bug."""

    def __init__(self, bugs: Iterable[Bug], defects: Known) -> None:
        self._bugs = tuple(bugs)
        self._defects = defects
        self.found: dict[str, Rediscovered] = {}

    @property
    def missed(self) -> tuple[str, ...]:
        """The bugs not found yet."""
        return tuple(bug.id for bug in self._bugs if bug.id not in self.found)

    def script(
        self, session: Session, found: Found, case: CaseSpec, ablation: Ablation | None
    ) -> Script:
        """The script of a finding that is a bug not found before; none of others."""
        bugs = [bug for bug in self._of(found, case) if bug.id in self.missed]
        if not bugs:
            return Script(path=None, confirmed=False, note="no bug of the table")
        return write_script(session, found, case, ablation)

    def note(self, found: Found) -> None:
        """Takes a finding that is done."""
        case = read_entry(found.case).case
        for bug in self._of(found, case):
            script = found.script
            self.found.setdefault(
                bug.id,
                Rediscovered(
                    key=found.finding.key,
                    examples=found.examples_to_find,
                    script="" if script is None or script.path is None else script.path.name,
                    confirmed=script is not None and script.confirmed,
                ),
            )

    def _of(self, found: Found, case: CaseSpec) -> Iterator[Bug]:
        return (bug for bug in self._bugs if bug.shown_by(found, case, self._defects))


def searched(python: Path, bugs: Sequence[Bug], folder: Path, bounds: Bounds, seed: int) -> Row:
    """Draws on that Python's torch as if the bugs were not known, and says which were found."""
    ranks_on = interpreter_at(python)
    machine = resolve_machine("gloo", (2,), ranks_on)
    release = Version(machine.torch).base_version
    profile = replace(PROFILES["dev"], shrink_seconds=SHRINK_SECONDS, ablation_seconds=0.0)
    folder.mkdir(parents=True, exist_ok=True)
    settings = RunSettings(
        session=SessionSettings(
            backend=machine.backend,
            profile=profile,
            output=folder,
            torch=machine.torch,
            offers=machine.offers,
            seed=seed,
            python=ranks_on,
            known=_known_of_others(bugs, folder / "known"),
        ),
        properties=tuple(item.name for item in properties_named(())),
        max_examples=bounds.examples,
        max_seconds=bounds.seconds,
        apis=APIS,
    )
    path = default_known()
    search = Search(
        (bug for bug in bugs if bug.lives_in(release)),
        Known() if path is None else Known.load(path),
    )

    def tell(event: Event) -> None:
        match event:
            case FindingMet(found=found):
                print(f"  met after {found.examples_to_find}: {found.finding.key}", flush=True)
            case FindingDone(found=found):
                search.note(found)
            case _:
                pass

    began = time.monotonic()
    summary: Summary = run(settings, tell, script=search.script)
    return Row(
        torch=machine.torch,
        seeds=(seed,),
        examples=summary.counts.examples,
        seconds=round(time.monotonic() - began),
        found=search.found,
        missed=search.missed,
    )


def _known_of_others(bugs: Iterable[Bug], folder: Path) -> Path:
    """The known defects that are none of these bugs, as a folder of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    shown = {name for bug in bugs for name in bug.known}
    for entry in sorted((default_known() or folder).glob("*.json")):
        if entry.stem not in shown:
            shutil.copy(entry, folder)
    return folder


def searched_by_seeds(
    python: Path,
    bugs: Sequence[Bug],
    folder: Path,
    bounds: Bounds,
    seeds: Sequence[int],
    jobs: int,
) -> Row:
    """The same with several seeds, ``jobs`` of them side by side, put together."""
    if len(seeds) == 1:
        return searched(python, bugs, folder, bounds, seeds[0])
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        parts = [
            pool.submit(searched, python, bugs, folder / str(seed), bounds, seed) for seed in seeds
        ]
        return together([part.result() for part in parts])


def together(rows: Sequence[Row]) -> Row:
    """One row for several seeds: each bug as the run has it that found it first, with a script
    that shows it before any without."""
    found: dict[str, Rediscovered] = {}
    for row in rows:
        for bug_id, new in row.found.items():
            old = found.get(bug_id)
            if old is None or (new.confirmed, -new.examples) > (old.confirmed, -old.examples):
                found[bug_id] = new
    return Row(
        torch=rows[0].torch,
        seeds=tuple(seed for row in rows for seed in row.seeds),
        examples=sum(row.examples for row in rows),
        seconds=max(row.seconds for row in rows),
        found=found,
        missed=tuple(
            bug_id for bug_id in rows[0].missed + tuple(rows[0].found) if bug_id not in found
        ),
    )


def page(rows: Mapping[str, Row], bugs: Sequence[Bug]) -> str:
    """The rows as a page: bugs against releases, then the scripts."""
    releases = sorted(rows, key=Version)
    again = {bug_id for row in rows.values() for bug_id in row.found}
    proved = {i for row in rows.values() for i, found in row.found.items() if found.confirmed}
    public = {bug.id for bug in bugs if bug.link}
    lines = [
        "# Real bugs found again in old releases",
        "",
        "Made by `python benchmarks/rediscovery.py` on gloo with 2 ranks, by runs that know none",
        "of these bugs. A number is how many examples it took; * that the script showed it, too;",
        "? that it was not found in as many as were run; empty: the release has it not. What is",
        "not asked came into the table after that release was tried.",
        f"Of {len(bugs)} bugs {len(again)} were found again, {len(proved)} with a script that "
        f"shows it; of the {len(public)} that PyTorch's tracker has, {len(public & again)}. The "
        "others were met by drawing in the first place.",
        "",
        *table(
            ["bug", "what", *releases],
            ([_linked(bug), bug.what, *(_cell(bug, rows[r]) for r in releases)] for bug in bugs),
        ),
        "",
        *table(
            ["torch", "examples", "seeds", "seconds", "found", "missed"],
            (
                [
                    r,
                    str(row.examples),
                    " ".join(map(str, row.seeds)),
                    str(row.seconds),
                    str(len(row.found)),
                    missed,
                ]
                for r, row in ((r, rows[r]) for r in releases)
                for missed in (", ".join(row.missed) or "none",)
            ),
        ),
        "",
        "Scripts, by the name that the run gives them in `--output`:",
        "",
        *(
            f"- {release}, {bug_id}: `{found.script}`"
            for release in releases
            for bug_id, found in rows[release].found.items()
            if found.script
        ),
    ]
    return "\n".join(lines) + "\n"


def _linked(bug: Bug) -> str:
    return f"[{bug.id}]({bug.link})" if bug.link else bug.id


def _cell(bug: Bug, row: Row) -> str:
    found = row.found.get(bug.id)
    if found is not None:
        return f"{found.examples}{'*' if found.confirmed else ''}"
    if bug.id in row.missed:
        return "?"
    return "not asked" if bug.lives_in(row.torch) else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """The releases, one after the other; what came of each is written at once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--torch", nargs="+", default=list(RELEASES), metavar="RELEASE")
    parser.add_argument("--folder", type=Path, help="where environments are made")
    parser.add_argument("--keep", action="store_true", help="leave the environments there")
    parser.add_argument("--examples", type=int, default=300)
    parser.add_argument("--max-seconds", type=float, help="to draw in, with each seed")
    parser.add_argument("--python", type=Path, help="an environment that is there, for --torch")
    parser.add_argument("--seeds", type=int, nargs="+", default=[5])
    parser.add_argument("--jobs", type=int, default=1, help="seeds side by side")
    parser.add_argument("--output", type=Path, default=Path(".fsdpfuzz") / "rediscovery")
    parser.add_argument("--json", type=Path, default=RESULT)
    args = parser.parse_args(arguments)
    bugs = bugs_of()
    bounds = Bounds(examples=args.examples, seconds=args.max_seconds)
    made = environments(args.torch, args.folder, keep=args.keep)
    for release, python in [("here", args.python)] if args.python else made:
        print(f"torch {release}", flush=True)
        folder = args.output / release
        row = searched_by_seeds(python, bugs, folder, bounds, args.seeds, args.jobs)
        release = Version(row.torch).base_version
        rows = {}
        if args.json.exists():
            rows = msgspec.json.decode(args.json.read_bytes(), type=dict[str, Row])
        rows[release] = row
        text = json.dumps(msgspec.to_builtins(rows), indent=1, sort_keys=True)
        args.json.write_text(text + "\n")
        args.json.with_suffix(".md").write_text(page(rows, bugs))
        print(f"  found {', '.join(row.found) or 'none'}; missed {', '.join(row.missed) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

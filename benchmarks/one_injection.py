"""One injected fault: how soon a run finds it, and whether the seeds do. Prints a line of JSON.

    python -m benchmarks.one_injection hunt|kill|seeds --inject MODULE:FUNCTION [--world-size 2] ...

A hunt stops some examples after its first finding is reduced, a kill at the first finding as it
is. The case is run once more without the fault: what it shows there is not the fault's. Without
``--inject`` nothing is injected, which says what this machine finds anyway.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fsdpfuzz.case import CaseSpec, Step, anatomy
from fsdpfuzz.corpus import read_entry
from fsdpfuzz.loop import (
    PROFILES,
    PROPERTIES,
    CaseDone,
    Event,
    FindingDone,
    FindingMet,
    Found,
    Profile,
    RunSettings,
    Scripting,
    Session,
    SessionSettings,
    Shrinking,
    Summary,
    default_known,
    resolve_machine,
    run,
    write_script,
)
from fsdpfuzz.pool import sigterm_exits
from fsdpfuzz.reduce import alike
from fsdpfuzz.seeds import SEEDS


@dataclass(slots=True)
class Watch:
    """Ends a run a number of examples after its first new finding is reduced.

    A finding that ``shown_without`` the injection is the machine's; the run goes on.
    """

    after: int
    shown_without: Callable[[Found], bool]
    first: Found | None = None
    """As it was met."""
    reduced: Found | None = None
    tries: int = 0
    """Cases run to reduce it."""
    first_only: bool = False
    """Whether to end at the first finding and reduce nothing."""
    reduced_at: float = 0.0
    elsewhere: set[str] = field(default_factory=set)
    """Keys of findings that are not the injected fault's."""
    _left: int = 0

    def __call__(self, event: Event) -> None:
        """Hears what the run tells; `KeyboardInterrupt` ends it in good order."""
        match event:
            case FindingMet(found=found) if found.known is None and self.first is None:
                self.first = found
                if self.first_only:
                    self._done(found)
            case Shrinking(tries=tries) if self.reduced is None:
                self.tries = tries
            case FindingDone(found=found) if found.known is None:
                self._done(found)
            case Scripting() if self.reduced is None:
                self.reduced_at = time.monotonic()
            case CaseDone() if self.reduced is not None:
                self._left -= 1
                if self._left < 0:
                    raise KeyboardInterrupt
            case _:
                pass

    def _done(self, found: Found) -> None:
        if self.shown_without(found):
            self.elsewhere.add(found.finding.key)
            if self.reduced is None:
                self.first = None
        elif self.reduced is None:
            self.reduced, self._left = found, self.after
            if self.first_only or not self.after:
                raise KeyboardInterrupt


def hunt(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The default mix until the first finding is reduced."""
    settings = session_settings(options, folder, options.inject)
    watch = Watch(
        options.after,
        lambda found: shown_without(found, options, folder),
        first_only=options.kind == "kill",
    )
    began = time.monotonic()
    summary = run(
        RunSettings(
            session=settings,
            properties=tuple(PROPERTIES),
            max_examples=options.examples,
            world_sizes=(options.world_size,),
            max_seconds=options.seconds,
        ),
        watch,
        script=write_script if options.kind == "hunt" else None,
    )
    record: dict[str, Any] = {
        "status": "failed" if summary.failure else "missed",
        "reason": summary.failure or "",
        "examples": summary.counts.examples,
        "seconds": round(time.monotonic() - began, 1),
        "harness_errors": summary.harness_errors,
        "restarts": summary.pool_restarts,
        "known": sorted({found.known for found in summary.findings if found.known}),
        "elsewhere": sorted(watch.elsewhere),
        "unconfirmed": sorted({found.finding.key for found in summary.unconfirmed}),
    }
    if watch.first is not None:
        return record | found_in(summary, watch, began)
    if record["status"] == "missed" and summary.seconds >= options.seconds:
        record["status"] = "out of time"
    return record


def found_in(summary: Summary, watch: Watch, began: float) -> dict[str, Any]:
    """What there is to say of the first finding."""
    assert watch.first is not None
    found = standing_for(watch.reduced or watch.first, summary)
    case = read_entry(found.case).case
    new = [
        other
        for other in (*summary.findings, *summary.unconfirmed)
        if other.known is None and other.finding.key not in watch.elsewhere
    ]
    return {
        # What does not show again ends a run as if nothing had been found.
        "status": "unconfirmed" if found in summary.unconfirmed else "found",
        "found_after": watch.first.examples_to_find,
        "found_seconds": round(watch.first.seconds, 1),
        "property": watch.first.property_name,
        "invariant": found.finding.invariant,
        "key": found.finding.key,
        "message": found.finding.message[:300],
        "findings": len(new),
        "keys": sorted({other.finding.key for other in new}),
        "modules": sum(bool(place.parameters) for place in anatomy(case).places),
        "operations": len(case.program),
        "steps": sum(isinstance(operation, Step) for operation in case.program),
        "ranks": case.world_size,
        "tries": watch.tries,
        "reduce_seconds": round(max(0.0, watch.reduced_at - began - watch.first.seconds), 1),
        "script": found.script is not None and found.script.confirmed,
        "script_note": found.script.note[:300] if found.script is not None else "not written",
    }


def standing_for(first: Found, summary: Summary) -> Found:
    """What is left of the finding: another one, if that was found later to be its cause."""
    key = first.finding.key
    left = [f for f in (*summary.findings, *summary.unconfirmed) if f.known is None]
    same = (f for f in left if key == f.finding.key)
    return next(same, None) or next((f for f in left if key in f.also), first)


def shown_without(found: Found, options: argparse.Namespace, folder: Path) -> bool:
    """Whether the case of a finding shows it where nothing is injected."""
    if not options.inject:
        return False
    case = read_entry(found.case).case
    with Session(session_settings(options, folder / "without", None)) as session:
        findings = session.examine(case).verdict.findings
        session.settle()
        return any(alike(found.finding, other) for other in findings)


def seeds(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The seeds, up to the first that shows something new that is not to be seen without."""
    began = time.monotonic()
    ran = 0
    with (
        Session(session_settings(options, folder, options.inject)) as session,
        Session(session_settings(options, folder / "without", None)) as plain,
    ):
        for name, case in seed_cases(options.backend):
            if time.monotonic() - began >= options.seconds:
                return {"status": "out of time", "seeds": ran, "seconds": options.seconds}
            ran += 1
            examined = session.examine(case)
            session.settle()
            for finding in examined.news:
                if not options.inject or not any(
                    alike(finding, other) for other in plain.examine(case).verdict.findings
                ):
                    return {
                        "status": "found",
                        "seed": name,
                        "found_after": ran,
                        "found_seconds": round(time.monotonic() - began, 1),
                        "invariant": finding.invariant,
                        "key": finding.key,
                        "message": finding.message[:300],
                    }
    return {"status": "missed", "seeds": ran, "seconds": round(time.monotonic() - began, 1)}


def seed_cases(backend: str) -> Iterable[tuple[str, CaseSpec]]:
    """Those that run on this backend."""
    for seed in SEEDS:
        case = seed.on(backend)
        if case is not None:
            yield seed.name, case


def session_settings(
    options: argparse.Namespace, folder: Path, injection: str | None
) -> SessionSettings:
    """A session with or without the fault."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = resolve_machine(options.backend, (options.world_size,))
    return SessionSettings(
        backend=machine.backend,
        torch=machine.torch,
        offers=machine.offers,
        output=folder,
        known=default_known(),
        injection=injection,
        seed=options.seed,
        profile=profile(options),
    )


def profile(options: argparse.Namespace) -> Profile:
    """That of developers, with this run's bounds of reduction."""
    return replace(
        PROFILES["dev"],
        world_sizes=(options.world_size,),
        shrink_seconds=options.shrink_seconds,
        ablation_seconds=min(options.shrink_seconds, PROFILES["dev"].ablation_seconds),
    )


def add_bounds(parser: argparse.ArgumentParser) -> None:
    """What is handed on from those that inject many faults."""
    parser.add_argument("--examples", type=int, default=400)
    parser.add_argument("--after", type=int, default=24, help="examples after the first finding")
    parser.add_argument("--seconds", type=float, default=120.0, help="to draw cases in")
    parser.add_argument("--shrink-seconds", type=float, default=40.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", default="gloo")


def main() -> None:
    """Runs with one injected fault."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kind", choices=("hunt", "kill", "seeds"))
    parser.add_argument("--inject")
    parser.add_argument("--world-size", type=int, default=2)
    add_bounds(parser)
    options = parser.parse_args()
    with sigterm_exits(), tempfile.TemporaryDirectory() as folder:
        record = (seeds if options.kind == "seeds" else hunt)(options, Path(folder))
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()

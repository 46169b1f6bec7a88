"""A run as data for its report: what a listener of the run's events has gathered."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.corpus import read_entry
from fsdpfuzz.errors import CaseError
from fsdpfuzz.known import Known
from fsdpfuzz.loop import (
    Also,
    CaseDone,
    Event,
    FindingDone,
    FindingMet,
    Found,
    Notice,
    RunFinished,
    RunStarted,
    Script,
    Scripting,
    Shrinking,
    Summary,
)
from fsdpfuzz.show._history import PastRun, past_runs
from fsdpfuzz.show._pairs import PairCounts, PairTable

MAX_SAMPLES = 400
MAX_NOTICES = 200
MAX_REPRO_BYTES = 256 << 10

Confirmation = Literal["confirmed", "not confirmed", "unknown"]


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run stood ``seconds`` after its start; everything counts from the start."""

    seconds: float
    examples: int = 0
    restarts: int = 0
    new: int = 0
    known: int = 0


class FindingRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A finding with everything that a person needs to look into it."""

    key: str
    property: str
    invariant: str
    symptom: str
    message: str
    observed: str = ""
    expected: str = ""
    rate: str = ""
    known: str | None = None
    examples_to_find: int = 0
    seconds: float = 0.0
    shrink_steps: int = 0
    shrunk: bool = False
    digest: str = ""
    path: str = ""
    """The file of the case."""
    case: CaseSpec | None = None
    unreadable: str = ""
    """Why the case's file cannot be read, if it cannot."""
    repro_path: str = ""
    repro: str = ""
    """The standalone script; empty if there is none."""
    confirmation: Confirmation = "unknown"
    confirmation_note: str = ""
    ablation: tuple[str, ...] = ()
    """Lines that say which options the finding needs."""


class KnownRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A known finding, and in how many generated cases of the run it showed."""

    id: str
    cases: int = 0
    reason: str = ""
    link: str = ""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run. ``date`` is UTC, to the minute."""

    date: str = ""
    version: str = ""
    torch: str = ""
    backend: str = ""
    world_sizes: tuple[int, ...] = ()
    profile: str = ""
    seed: int = 0
    properties: tuple[str, ...] = ()
    max_examples: int = 0
    max_seconds: float | None = None
    jobs: int = 1
    examples: int = 0
    passed: int = 0
    rejected: int = 0
    vacuous: int = 0
    failed: int = 0
    skipped: int = 0
    """Drawn, but not run."""
    seconds: float = 0.0
    examples_per_second: float = 0.0
    pool_restarts: int = 0
    exit_code: int | None = None
    """None while the run goes on."""
    strict: bool = False
    failure: str = ""
    findings: tuple[FindingRecord, ...] = ()
    unconfirmed: tuple[FindingRecord, ...] = ()
    """What showed once and not again, or is denied by its own script: no findings."""
    harness_errors: int = 0
    """Cases that ended in what is the fuzzer's or the machine's fault."""
    harness: tuple[str, ...] = ()
    """What each of the first of these was, and where its case is kept."""
    pairs: PairTable = PairTable(cases=0, values=(), pairs={})
    samples: tuple[Sample, ...] = ()
    known_met: tuple[KnownRecord, ...] = ()
    known_silent: tuple[KnownRecord, ...] = ()
    notices: tuple[str, ...] = ()
    earlier: tuple[PastRun, ...] = ()
    """Other runs in the same output folder, newest first."""


class Recorder:
    """Takes the events of a run, in order, and makes a `RunRecord` of them at any time.

    ``known`` is the folder of known defects, for their reasons. Memory is bounded: what
    grows with the number of cases is counted or thinned out.
    """

    def __init__(
        self, known: Path | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._known = Known() if known is None else Known.load(known)
        self._clock = clock
        self._began = clock()
        self._date = _now()
        self._started: RunStarted | None = None
        self._summary: Summary | None = None
        self._statuses: Counter[str] = Counter()
        self._found: dict[tuple[str, str | None], Found] = {}
        self._known_cases: Counter[str] = Counter()
        self._pairs = PairCounts()
        self._samples = Samples()
        self._notices: list[str] = []
        self._restarts = 0

    def __call__(self, event: Event) -> None:
        """Takes one event."""
        match event:
            case RunStarted():
                self._started = event
                self._began, self._date = self._clock(), _now()
            case CaseDone():
                self._statuses[event.status] += 1
                self._known_cases.update(event.known)
                self._pairs.add(event.features)
                self._restarts = event.restarts
            case Shrinking():
                self._restarts = event.restarts
            case Scripting():
                return
            case FindingMet(found=found) | FindingDone(found=found) | Also(found=found):
                for key in found.also:
                    self._found.pop((key, None), None)
                self._found[found.finding.key, found.known] = found
            case Notice():
                if len(self._notices) < MAX_NOTICES:
                    self._notices.append(event.text)
                return
            case RunFinished(summary=summary):
                self._summary = summary
                self._restarts = summary.pool_restarts
                self._found.update(
                    ((found.finding.key, found.known), found) for found in summary.findings
                )
                for found in summary.unconfirmed:
                    self._found.pop((found.finding.key, None), None)
        self._samples.add(self._sample())

    @property
    def known_cases(self) -> Counter[str]:
        """In how many cases each known defect showed."""
        return Counter(self._known_cases)

    def record(self) -> RunRecord:
        """The run as far as it has come. Reads the files of the findings' cases and repros."""
        import fsdpfuzz

        started, summary = self._started, self._summary
        examples = sum(self._statuses.values())
        seconds = summary.seconds if summary is not None else self._clock() - self._began
        silent = summary.silent_known if summary is not None else ()
        unconfirmed = summary.unconfirmed if summary is not None else ()
        met = dict(self._known_cases)
        for _, known in self._found:
            if known is not None:
                met.setdefault(known, 0)
        if summary is not None:
            started = summary.started
        base = RunRecord() if started is None else _of_start(started)
        return msgspec.structs.replace(
            base,
            date=self._date,
            version=fsdpfuzz.__version__,
            examples=examples,
            passed=self._statuses["passed"],
            rejected=self._statuses["rejected"],
            vacuous=self._statuses["vacuous"],
            failed=self._statuses["finding"],
            skipped=summary.counts.skipped if summary is not None else 0,
            seconds=seconds,
            examples_per_second=examples / seconds if seconds > 0 else 0.0,
            pool_restarts=self._restarts,
            exit_code=summary.exit_code if summary is not None else None,
            strict=summary.strict if summary is not None else False,
            failure=(summary.failure or "") if summary is not None else "",
            findings=tuple(self._finding(found) for found in self._found.values()),
            unconfirmed=tuple(self._finding(found) for found in unconfirmed),
            harness_errors=summary.harness_errors if summary is not None else 0,
            harness=summary.harness[:MAX_NOTICES] if summary is not None else (),
            pairs=self._pairs.table(),
            samples=self._samples.all,
            known_met=tuple(self._known_record(name, met[name]) for name in sorted(met)),
            known_silent=tuple(self._known_record(name, 0) for name in silent),
            notices=tuple(self._notices),
            earlier=past_runs(started.output) if started is not None else (),
        )

    def _sample(self) -> Sample:
        new = sum(known is None for _, known in self._found)
        return Sample(
            seconds=self._clock() - self._began,
            examples=sum(self._statuses.values()),
            restarts=self._restarts,
            new=new,
            known=len(self._found) - new,
        )

    def _finding(self, found: Found) -> FindingRecord:
        finding = found.finding
        case, unreadable = _case_of(found.case)
        script = found.script
        return FindingRecord(
            key=finding.key,
            property=found.property_name,
            invariant=finding.invariant,
            symptom=finding.symptom,
            message=finding.message,
            observed=finding.observed,
            expected=finding.expected,
            rate=str(found.rate) if found.rate is not None else "",
            known=found.known,
            examples_to_find=found.examples_to_find,
            seconds=found.seconds,
            shrink_steps=found.shrink_steps,
            shrunk=found.shrunk,
            digest=found.digest,
            path=str(found.case),
            case=case,
            unreadable=unreadable,
            repro_path=str(found.repro) if found.repro is not None else "",
            repro=_text(found.repro),
            confirmation=_confirmation(script),
            confirmation_note=script.note if script is not None else "",
            ablation=script.ablation if script is not None else (),
        )

    def _known_record(self, name: str, cases: int) -> KnownRecord:
        defect = self._known.defects.get(name)
        if defect is None:
            return KnownRecord(id=name, cases=cases)
        return KnownRecord(id=name, cases=cases, reason=defect.reason, link=defect.link)


class Samples:
    """At most `MAX_SAMPLES` samples, about evenly spread over the time so far."""

    def __init__(self) -> None:
        self._kept: list[Sample] = []
        self._gap = 0.0

    @property
    def all(self) -> tuple[Sample, ...]:
        """The samples in order; the last one is the newest that came."""
        return tuple(self._kept)

    def add(self, sample: Sample) -> None:
        """Takes a sample; of those that come close together the last stays."""
        kept = self._kept
        if len(kept) > 1 and sample.seconds - kept[-2].seconds < self._gap:
            kept[-1] = sample
            return
        kept.append(sample)
        if len(kept) > MAX_SAMPLES:
            self._gap = 2 * sample.seconds / MAX_SAMPLES
            thinned = [kept[0]]
            for item in kept[1:-1]:
                if item.seconds - thinned[-1].seconds >= self._gap:
                    thinned.append(item)
            self._kept = [*thinned, kept[-1]]


def _of_start(started: RunStarted) -> RunRecord:
    return RunRecord(
        torch=started.torch,
        backend=started.backend,
        world_sizes=started.world_sizes,
        profile=started.profile,
        seed=started.seed,
        properties=started.properties,
        max_examples=started.max_examples,
        max_seconds=started.max_seconds,
        jobs=started.jobs,
    )


def _case_of(path: Path) -> tuple[CaseSpec | None, str]:
    try:
        return read_entry(path).case, ""
    except CaseError as error:
        return None, str(error)


def _confirmation(script: Script | None) -> Confirmation:
    if script is None:
        return "unknown"
    return "confirmed" if script.confirmed else "not confirmed"


def _text(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        with path.open("rb") as file:
            return file.read(MAX_REPRO_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")

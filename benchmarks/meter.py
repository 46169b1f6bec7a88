"""A session whose parts are timed: which share of a run is training, and where the rest goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.loop import (
    CaseDone,
    Event,
    PoolLike,
    Ports,
    RunSettings,
    Session,
    Sighting,
    real_ports,
    run,
)
from fsdpfuzz.observations import Observation, RankReport
from fsdpfuzz.pool import Pool
from fsdpfuzz.verdict import Verdict

TIMED_RANKS = "benchmarks.in_ranks:install"
IN_RANKS = ("work", "compare", "agree", "report", "idle")
"""What a case's time consists of in its slower rank. ``work``: building and training the
reference (float64 and float32, under DDP) and FSDP; ``compare``: what is observed of it;
``agree``: broadcast and comparison of digests; ``report``: memory, threads, descriptors;
``idle``: between cases, as far as the controller's drawing and judging is not hidden."""
IN_CONTROLLER = ("draw", "judge", "disk", "wait")
"""What it consists of in the controller. ``draw``: Hypothesis and the loop; ``wait``: for the
ranks."""

_T = TypeVar("_T")


@dataclass(slots=True, kw_only=True)
class Timed:
    """One case that the ranks ran, in seconds. ``whole`` runs from the end of the last case."""

    case: CaseSpec
    clean: bool
    start: float
    wait: float
    work: float
    parts: dict[str, float]
    losses: tuple[float, ...]
    judge: float = 0.0
    disk: float = 0.0
    whole: float = 0.0

    def share(self, part: str) -> float:
        """Seconds of one part."""
        if part == "idle":
            return self.whole - self.work - sum(self.parts.get(name, 0.0) for name in IN_RANKS[1:4])
        if part == "draw":
            return self.whole - self.wait - self.judge - self.disk
        if part in ("work", "wait", "judge", "disk"):
            return float(getattr(self, part))
        return self.parts.get(part, 0.0)


@dataclass(slots=True)
class Meter:
    """Runs properties and notes the time of every case."""

    rows: list[Timed] = field(default_factory=list)
    observe: Callable[[CaseSpec, Observation], None] | None = None
    """Is told of everything that the ranks saw."""
    _case: list[Timed] = field(default_factory=list)
    _disk: float = 0.0
    _end: float = 0.0

    def run(self, settings: RunSettings) -> list[Timed]:
        """One run; its clean cases. The start of the ranks counts for nothing."""
        session = settings.session
        settings = replace(settings, session=replace(session, injection=TIMED_RANKS))
        ports = self._timed(real_ports(settings.session))
        before = len(self.rows)
        with Session(settings.session, ports) as opened:
            self._end = time.perf_counter()
            summary = run(settings, self._take, session=opened)
        if summary.failure or summary.interrupted:
            raise SystemExit(f"the run ended early: {summary.failure or summary.interrupted}")
        return [row for row in self.rows[before:] if row.clean]

    def _take(self, event: Event) -> None:
        if not isinstance(event, CaseDone):
            return
        now = time.perf_counter()
        # A case that was run again, or that failed or was refused, has no time to compare with.
        alone = len(self._case) == 1 and event.status in ("passed", "vacuous")
        for row in self._case:
            row.clean = row.clean and alone
            row.disk, row.whole = self._disk, now - self._end - row.start
        self.rows += self._case
        self._case, self._disk, self._end = [], 0.0, now

    def _timed(self, ports: Ports) -> Ports:
        def make_pool(world_size: int) -> PoolLike:
            pool = ports.make_pool(world_size)
            if not isinstance(pool, Pool):
                raise TypeError(f"a {type(pool).__name__} is no pool of ranks")
            return _TimedPool(pool, self)

        def judge(case: CaseSpec, observation: Observation) -> Verdict:
            started = time.perf_counter()
            verdict = ports.judge(case, observation)
            self._case[-1].judge = time.perf_counter() - started
            return verdict

        return replace(ports, make_pool=make_pool, judge=judge, archive=_TimedDisk(ports, self))

    def took(self, case: CaseSpec, seen: Observation, wait: float, start: float) -> None:
        """The ranks ran a case."""
        reports = [report for report in seen.reports if report is not None]
        slowest = max(reports, key=lambda report: report.work_seconds, default=None)
        self._case.append(
            Timed(
                case=case,
                clean=seen.clean,
                start=start,
                wait=wait,
                work=slowest.work_seconds if slowest else 0.0,
                parts=dict(slowest.timings) if slowest else {},
                losses=_losses(reports),
            )
        )
        if self.observe is not None:
            self.observe(case, seen)

    def on_disk(self, action: Callable[[], _T]) -> _T:
        """Times an access to the archive."""
        started = time.perf_counter()
        try:
            return action()
        finally:
            self._disk += time.perf_counter() - started


class _TimedPool:
    def __init__(self, pool: Pool, meter: Meter) -> None:
        self._pool = pool
        self._meter = meter
        self._start = 0.0

    @property
    def restarts(self) -> int:
        return self._pool.restarts

    def begin(self, case: CaseSpec) -> None:
        began = time.perf_counter()
        self._pool.start()
        self._start += time.perf_counter() - began
        self._pool.begin(case)

    def run(self, case: CaseSpec, *, patience: bool = False) -> Observation:
        began = time.perf_counter()
        seen = self._pool.run(case, patience=patience)
        self._meter.took(case, seen, time.perf_counter() - began, self._start)
        self._start = 0.0
        return seen

    def close(self) -> None:
        self._pool.close()


class _TimedDisk:
    def __init__(self, ports: Ports, meter: Meter) -> None:
        self._archive = ports.archive
        self._meter = meter

    def begin(self, case: CaseSpec) -> None:
        self._meter.on_disk(lambda: self._archive.begin(case))

    def finish(self) -> None:
        self._meter.on_disk(self._archive.finish)

    def keep(self, sighting: Sighting) -> Path:
        return self._meter.on_disk(lambda: self._archive.keep(sighting))

    def keep_harness_error(self, case: CaseSpec, reason: str, words: str) -> Path:
        return self._archive.keep_harness_error(case, reason, words)

    def drop(self, path: Path) -> None:
        self._archive.drop(path)

    def pending(self) -> list[CaseSpec]:
        return self._archive.pending()


def _losses(reports: list[RankReport]) -> tuple[float, ...]:
    return tuple(x for report in reports for subject in report.subjects for x in subject.losses)

"""The one ledger of a campaign, made of what its jobs tell."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from fsdpfuzz.loop._events import (
    Also,
    CaseDone,
    Counts,
    Event,
    FindingDone,
    FindingMet,
    Found,
    Notice,
    RunFinished,
    RunStarted,
    Scripting,
    Shrinking,
    Summary,
)

Name = tuple[str, str | None]


@dataclass(slots=True)
class _Job:
    """What one job has told so far."""

    statuses: Counter[str]
    restarts: int = 0
    harness: tuple[str, ...] = ()
    """Harness errors, each in a line."""
    summary: Summary | None = None

    @property
    def counts(self) -> Counts:
        """Its own counts, or those of the cases that it told of."""
        if self.summary is not None:
            return self.summary.counts
        return Counts(
            examples=self.statuses.total(),
            passed=self.statuses["passed"],
            rejected=self.statuses["rejected"],
            vacuous=self.statuses["vacuous"],
            failed=self.statuses["finding"],
        )


class Books:
    """Adds up what the jobs tell, as if it were one run.

    Counts are over all jobs, and so is the number of examples after which a finding was met.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = [_Job(Counter()) for _ in range(jobs)]
        self._found: dict[Name, Found] = {}
        self._met: dict[str, tuple[int, float]] = {}
        self._examples = 0

    def take(self, job: int, event: Event, seconds: float) -> tuple[Event, ...]:
        """Books an event of a job, ``seconds`` into the campaign; what there is to tell of it."""
        own = self._jobs[job]
        match event:
            case CaseDone():
                own.statuses[event.status] += 1
                own.restarts = event.restarts
                self._examples += 1
                return (replace(event, index=self._examples, restarts=self.restarts),)
            case Shrinking():
                own.restarts = event.restarts
                return (replace(event, restarts=self.restarts),)
            case FindingMet(found=found):
                if (found.finding.key, found.known) in self._found:
                    return ()
                # 0 for what was met in a case that an earlier run had left behind.
                examples = self._examples if found.examples_to_find else 0
                self._met[found.finding.key] = (examples, seconds)
                return (FindingMet(found=self.put(found)),)
            case FindingDone(found=found):
                return (FindingDone(found=self.put(found)),)
            case Also(found=found, key=key):
                return (Also(found=self.put(found), key=key),)
            case Notice():
                own.harness += (event.text,) * event.harness_error
                return (replace(event, text=f"job {job + 1}: {event.text}"),)
            case Scripting():
                return (event,)
            case RunFinished(summary=summary):
                own.summary, own.restarts = summary, summary.pool_restarts
                own.harness = summary.harness
                # A job that was ended in the middle has not told of the last that it did.
                # Its summary still names those findings that were merged into a cause since.
                also = {key for found in self._found.values() for key in found.also}
                for found in (*summary.findings, *filter(_denied, summary.unconfirmed)):
                    if found.known is not None or found.finding.key not in also:
                        self.put(found)
                return ()
            case RunStarted():
                return ()

    def put(self, found: Found) -> Found:
        """Books a finding as it stands now; the same with what all jobs know of it."""
        name = (found.finding.key, found.known)
        before = self._found.get(name)
        keys = [found.finding.key, *(before.also if before is not None else ()), *found.also]
        if before is not None:
            # Another job knows the cause as it was before its script was written.
            found = max(before, found, key=_progress)
        also = tuple(dict.fromkeys(key for key in keys[1:] if key != found.finding.key))
        examples, seconds = min(
            (self._met[key] for key in keys if key in self._met),
            default=(found.examples_to_find, found.seconds),
        )
        found = replace(found, also=also, examples_to_find=examples, seconds=seconds)
        place = [(key, None) for key in keys] if found.known is None else [name]
        first = next((old for old in self._found if old in place), name)
        self._found = {
            (name if old == first else old): (found if old == first else value)
            for old, value in self._found.items()
            if old == first or old not in place
        }
        self._found[name] = found
        return found

    def cut_short(self, job: int, text: str) -> None:
        """Books that a job came to no good end, as ``text`` says."""
        self._jobs[job].harness += (text,)

    def summary_of(self, job: int) -> Summary | None:
        """What a job said at its end."""
        return self._jobs[job].summary

    def examples_of(self, job: int) -> int:
        """How many cases a job has run."""
        return self._jobs[job].counts.examples

    def restarts_of(self, job: int) -> int:
        """How often a job's ranks were started again."""
        return self._jobs[job].restarts

    @property
    def restarts(self) -> int:
        """How often ranks were started again, over all jobs."""
        return sum(job.restarts for job in self._jobs)

    @property
    def harness(self) -> tuple[str, ...]:
        """The harness errors of all jobs, and the jobs that came to no good end."""
        return tuple(text for job in self._jobs for text in job.harness)

    @property
    def counts(self) -> Counts:
        """The sum over the jobs."""
        every = [job.counts for job in self._jobs]
        return Counts(
            examples=sum(one.examples for one in every),
            passed=sum(one.passed for one in every),
            rejected=sum(one.rejected for one in every),
            vacuous=sum(one.vacuous for one in every),
            failed=sum(one.failed for one in every),
            skipped=sum(one.skipped for one in every),
        )

    @property
    def found(self) -> tuple[Found, ...]:
        """All findings, in the order in which they were met."""
        return tuple(found for found in self._found.values() if not found.unconfirmed)

    @property
    def unconfirmed(self) -> tuple[Found, ...]:
        """What showed once and not again in any job, and what its own script denies."""
        denied = [found for found in self._found.values() if found.unconfirmed]
        met = {key for found in self._found.values() for key in (found.finding.key, *found.also)}
        doubtful = {
            found.finding.key: found
            for job in self._jobs
            if job.summary is not None
            for found in job.summary.unconfirmed
            if found.finding.key not in met
        }
        return (*denied, *doubtful.values())

    @property
    def silent_known(self) -> tuple[str, ...]:
        """The known findings that no job met, of the jobs that came to their end."""
        said = [job.summary.silent_known for job in self._jobs if job.summary is not None]
        return tuple(name for name in said[0] if all(name in one for one in said)) if said else ()


def _denied(found: Found) -> bool:
    return found.unconfirmed


def _progress(found: Found) -> tuple[bool, bool]:
    return found.script is not None, found.shrunk

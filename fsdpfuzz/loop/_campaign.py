"""A campaign: several runs side by side, in processes of their own, as one run."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TextIO

from fsdpfuzz.loop._board import Board
from fsdpfuzz.loop._books import Books
from fsdpfuzz.loop._derived import derived_seed
from fsdpfuzz.loop._events import (
    CaseDone,
    Emit,
    Event,
    JobDone,
    Notice,
    RunFinished,
    RunStarted,
    Summary,
)
from fsdpfuzz.loop._machine import told_devices
from fsdpfuzz.loop._messages import (
    Answer,
    Failed,
    First,
    Message,
    More,
    News,
    Reduced,
    Told,
    Turn,
    event_of,
)
from fsdpfuzz.loop._portions import Portion, Portions
from fsdpfuzz.loop._processes import JobProcess, job_command
from fsdpfuzz.loop._run import DIGESTS, Stopped, shares_of, started_with, tell_silent
from fsdpfuzz.loop._settings import RunSettings
from fsdpfuzz.pool import lend

JOBS = "jobs"
"""Folder of the jobs' own files, in that of the run."""
_SEEDS = 2**32
_TICK = 1.0
_END_SECONDS = 5.0
_GRACE = 30.0
"""Seconds in which jobs that were sent a signal end their ranks and say what they had."""


def jobs_of(parts: Sequence[tuple[RunSettings, int]]) -> tuple[RunSettings, ...]:
    """The settings of each job, for so many jobs with the settings of each part.

    All share one folder; the examples are dealt out, and so is, on each backend, what a run begins
    with. Each job has a seed of its own.
    """
    every = [settings for settings, number in parts for _ in range(number)]
    shares = [share for share in shares_of(every[0].max_examples, len(every)) if share]
    backends = [settings.session.backend for settings, _ in zip(every, shares, strict=False)]
    return tuple(
        replace(
            settings,
            session=replace(
                settings.session,
                seed=derived_seed(settings.session.seed, JOBS, number) % _SEEDS,
            ),
            max_examples=share,
            notes=settings.session.folder / JOBS / str(number),
            place=(backends[: number - 1].count(backend), backends.count(backend)),
        )
        for number, (settings, share, backend) in enumerate(
            zip(every, shares, backends, strict=False), start=1
        )
    )


def campaign(
    parts: Sequence[tuple[RunSettings, int]], emit: Emit, *, command: Sequence[str] = ()
) -> Summary:
    """Runs the jobs of all parts and tells ``emit`` of everything, as `run` does of one run.

    `KeyboardInterrupt`, and `Stopped` for other signals, ends all jobs, which then say what they
    have; once more ends them at once. A job that comes to no good end is a harness error, and the
    others go on. ``command`` starts a job.
    """
    return _Campaign(parts, emit, command or job_command()).run()


class _Campaign:
    def __init__(
        self, parts: Sequence[tuple[RunSettings, int]], emit: Emit, command: Sequence[str]
    ) -> None:
        seed = parts[0][0].session.seed
        self._portions = Portions(jobs_of(parts), seed)
        self._settings = self._portions.first
        self._dealt = [settings.max_examples for settings in self._settings]
        """How many examples each job was given so far."""
        self._started = _started([settings for settings, _ in parts], len(self._settings))
        self._strict = parts[0][0].session.strict
        self._emit = emit
        self._command = command
        self._books = Books(len(self._settings))
        self._board = Board(len(self._settings))
        self._running: list[JobProcess] = []
        self._ends: dict[int, tuple[float, str]] = {}
        """Of each job that has ended: when, and why without a result."""
        self._interrupted: int | None = None
        self._quiet = False
        """Whether the run is ending, and what jobs tell is booked only."""
        self._began = time.monotonic()
        self._digests: TextIO | None = None

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def run(self) -> Summary:
        folder = self._started.output
        folder.mkdir(parents=True, exist_ok=True)
        try:
            # Line by line: of a campaign that is killed, what was run can be told from it.
            with (folder / DIGESTS).open("w", encoding="ascii", buffering=1) as self._digests:
                self._run()
        finally:
            self._quiet = True
            self._kill()
        summary = self._summary()
        self._emit(RunFinished(summary=summary))
        return summary

    def _run(self) -> None:
        try:
            self._emit(self._started)
            for number, settings in enumerate(self._settings):
                session, environment = settings.session, _environment(number, settings)
                # From where the ranks come that have said what this machine can run.
                lent = None if environment else lend(session.backend, session.python)
                try:
                    process = JobProcess(
                        number, settings, self._command, environment, lent, cores_of(settings)
                    )
                finally:
                    if lent is not None:
                        lent.close()
                self._running.append(process)
            self._listen(None)
            if len(self._failures) < len(self._settings):
                counts, silent = self._books.counts, self._books.silent_known
                tell_silent(counts.examples, silent, self._emit)
        except KeyboardInterrupt as stop:
            self._quiet = True
            self._interrupted = stop.number if isinstance(stop, Stopped) else int(signal.SIGINT)
            self._end_all(self._interrupted)
            name = signal.Signals(self._interrupted).name
            self._emit(Notice(text=f"ended early by {name}"))

    def _end_all(self, number: int) -> None:
        """Has all jobs end in good order; a second signal, or too long a wait, ends them."""
        try:
            for job in self._running:
                job.signal(number)
            self._listen(time.monotonic() + _GRACE)
        except KeyboardInterrupt:
            pass
        finally:
            self._kill()

    # Jobs are in sessions of their own, out of reach of the terminal: nobody else would end them.
    def _kill(self) -> None:
        for job in self._running:
            job.signal(signal.SIGKILL)
            self._ended(job)
        self._running.clear()

    def _listen(self, end: float | None) -> None:
        """Hears the jobs until the last has ended, or the time is up."""
        while self._running and (end is None or time.monotonic() < end):
            # Made anew each time: the jobs that are left change in the loop.
            with selectors.DefaultSelector() as selector:
                for job in self._running:
                    selector.register(job, selectors.EVENT_READ, job)
                ready = [key.data for key, _ in selector.select(_TICK)]
            for job in ready:
                self._hear(job)
            # After all messages that were there: one of them may be what a waiting job waits for.
            due = self._board.due()
            for job in self._running:
                if job.number in due:
                    job.answer(Answer(yes=due[job.number]))

    def _hear(self, job: JobProcess) -> None:
        said = job.receive()
        if said is None:
            self._running.remove(job)
            self._ended(job)
            return
        for message in said:
            self._take(job, message)

    def _take(self, job: JobProcess, message: Message) -> None:
        number, board = job.number, self._board
        match message:
            case Told():
                for event in self._books.take(number, event_of(message), self._seconds):
                    self._tell(event)
            case Failed(reason=reason):
                job.failure = reason
            case First(name=name):
                job.answer(Answer(yes=board.first(number, name)))
            case News(seen=seen):
                job.answer(Answer(causes=board.news(seen)))
            case Turn(seen=seen, wait=wait):
                yes = board.turn(number, seen, wait=wait)
                if yes is not None:
                    job.answer(Answer(yes=yes))
            case Reduced(seen=seen, cause=cause):
                done = board.reduced(number, seen, cause)
                if done and cause is not None:
                    self._books.put(cause.found)
                job.answer(Answer(yes=done))
            case More():
                job.answer(Answer(portion=self._deal(job)))

    def _deal(self, job: JobProcess) -> Portion | None:
        portion = self._portions.next(job.settings.session.backend)
        if portion is not None:
            self._dealt[job.number] += portion.examples
        return portion

    def _tell(self, event: Event) -> None:
        if isinstance(event, CaseDone) and self._digests is not None:
            self._digests.write(event.digest + "\n")
        if not self._quiet:
            self._emit(event)

    def _ended(self, job: JobProcess) -> None:
        code = job.wait(_END_SECONDS)
        summary = self._books.summary_of(job.number)
        failure = ""
        if summary is None:
            failure = job.last_words(code)
        elif summary.failure is not None:
            failure = summary.failure
        self._ends[job.number] = (self._seconds, failure)
        if failure and not self._quiet:
            self._board.gone(job.number)
            done, dealt = self._books.examples_of(job.number), self._dealt[job.number]
            text = f"job {job.number + 1} ended after {done} of {dealt} examples: {failure}"
            text = f"harness error, {text}; {job.output}"
            self._books.cut_short(job.number, text)
            self._emit(Notice(text=text, harness_error=True))

    @property
    def _failures(self) -> list[str]:
        return [failure for _, failure in self._ends.values() if failure]

    def _summary(self) -> Summary:
        books, failures = self._books, self._failures
        stopped = self._interrupted is not None or len(failures) < len(self._settings)
        versions = [
            summary.started.torch
            for number in range(len(self._settings))
            if (summary := books.summary_of(number)) is not None
        ]
        return Summary(
            started=replace(self._started, torch=next(iter(versions), self._started.torch)),
            counts=books.counts,
            seconds=self._seconds,
            pool_restarts=books.restarts,
            findings=books.found,
            strict=self._strict,
            interrupted=self._interrupted,
            failure=None if stopped else f"no job came to its end: {failures[0]}",
            silent_known=books.silent_known,
            unconfirmed=books.unconfirmed,
            harness_errors=len(books.harness),
            harness=books.harness,
            jobs=tuple(map(self._job_done, range(len(self._settings)))),
        )

    def _job_done(self, number: int) -> JobDone:
        session = self._settings[number].session
        seconds, failure = self._ends.get(number, (self._seconds, ""))
        return JobDone(
            job=number + 1,
            backend=session.backend,
            seed=session.seed,
            examples=self._books.examples_of(number),
            seconds=round(seconds, 3),
            pool_restarts=self._books.restarts_of(number),
            failure=failure,
        )


def _started(parts: Sequence[RunSettings], jobs: int) -> RunStarted:
    """What there is to say of all jobs together."""
    sizes = {size for settings in parts for size in settings.world_sizes}
    return replace(
        started_with(parts[0]),
        backend="+".join(dict.fromkeys(settings.session.backend for settings in parts)),
        world_sizes=tuple(sorted(sizes)),
        jobs=jobs,
    )


def _environment(number: int, settings: RunSettings) -> dict[str, str]:
    """What differs from the campaign's environment: which GPUs come first.

    Rank 0 takes the first GPU; so jobs begin at different ones where there are more than ranks.
    """
    devices = told_devices()
    if settings.session.backend == "gloo" or not devices:
        return {}
    # All stay visible to every job: NCCL ranks are one a GPU, and the largest world may need them
    # all.
    start = number * max(settings.world_sizes) % len(devices)
    return {"CUDA_VISIBLE_DEVICES": ",".join([*devices[start:], *devices[:start]])}


# The ranks of a pool wake each other hundreds of times a case, which takes longest from one core to
# another. With a core for each of two jobs there were 13.5 examples a second, without 11.6; with
# one for each of 16 jobs 53 and 46.
def cores_of(settings: RunSettings) -> set[int]:
    """The core of a job where each core has as many of them; none for all of them."""
    cores = sorted(os.sched_getaffinity(0))
    number, jobs = settings.place
    if settings.session.backend != "gloo" or jobs % len(cores):
        return set()
    return {cores[number % len(cores)]}

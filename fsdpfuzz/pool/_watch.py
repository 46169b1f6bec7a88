"""Follows one case until every rank has answered, died or is given up."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from fsdpfuzz.observations import MAX_TRACEBACK, Death, Hang, Raised, RankReport
from fsdpfuzz.pool._crew import Crew
from fsdpfuzz.pool._disagreement import find_disagreement
from fsdpfuzz.pool._progress import Progress
from fsdpfuzz.pool._rank import Rank
from fsdpfuzz.pool._usage import load_of_a_core
from fsdpfuzz.wire import Answer, Recording

STALL = 0.8
"""Seconds for which ranks must stand still before they can be said to be stuck."""
_LOOK = 0.2
_GAP = 1.0
"""A pause between two looks that counts in full; a longer one says that nobody was running."""


class Watch:
    """``deadline`` counts from the start, ``grace`` from the first rank's failure; seconds.

    Ranks that disagree on a collective for certain, and have not moved for ``stall``, will
    not move any more: they need no deadline. Ranks that still move when the time is over, or
    that did not get a processor, have until ``ceiling``. ``clock`` tells the seconds of which
    `wait` is given the start.
    """

    def __init__(
        self,
        crew: Crew,
        *,
        deadline: float,
        grace: float,
        number: int,
        digest: str,
        stall: float = STALL,
        ceiling: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.reports: list[RankReport | None] = [None] * len(crew.ranks)
        self.deaths: list[Death] = []
        self._crew = crew
        self._deadline = deadline
        self._grace = grace
        self._number = number
        self._digest = digest
        self._stall = stall
        self._ceiling = max(ceiling, deadline)
        self._clock = clock
        self._failed_at = 0.0
        self._progress = Progress()
        self._lost = 0.0
        """Seconds in which this process did not run either."""

    def wait(self, started: float) -> Hang | None:
        """Until all is known, or the hang that ended the waiting."""
        looked = self._clock()
        while True:
            waiting = self._take_in()
            if not waiting:
                return None
            now = self._clock()
            # The machine may have slept, or this process have been
            # stopped: the ranks were then as well.
            self._lost += max(0.0, now - looked - _GAP)
            looked = now
            passed = now - started - self._lost
            patience = self._patience(started)
            # To look costs system calls for each rank, and most cases are over before.
            if self._failed_at or passed >= min(self._grace, self._stall):
                self._look(self._crew.recordings())
            if self._is_over(waiting, passed, patience):
                # This process may have been stopped or starved: what came counts.
                self._crew.poll(0.0)
                self._crew.settle()
                waiting = self._take_in()
                return self._hang(waiting, passed) if waiting else None
            left = patience - passed
            self._crew.poll(min(left, _LOOK) if left > 0 else _LOOK / 4)

    def _look(self, recordings: tuple[Recording, ...]) -> None:
        before = self._clock()
        usage = self._crew.usage()
        self._progress.look(recordings, usage, before=before, after=self._clock())

    def _patience(self, started: float) -> float:
        """Seconds after which ranks that are stuck are given up."""
        if not self._failed_at:
            return self._deadline
        failed = self._failed_at - started - self._lost
        return min(self._deadline, failed + self._grace)

    def _is_over(self, waiting: list[Rank], passed: float, patience: float) -> bool:
        """Whether there is nothing more to wait for."""
        # Whatever the ranks do: a case that moves for ever ends as well.
        if passed >= self._ceiling:
            return True
        progress = self._progress
        # Only after a pause: what was read while ranks move may be of two moments.
        if 0.0 < progress.still >= self._stall and self._disagree(waiting):
            return True
        if passed < patience:
            return False
        still = min(self._stall, self._grace) if self._failed_at else self._stall
        late = [rank.rank for rank in waiting]
        return 0.0 < progress.still >= still and progress.stuck(late, self._deadline)

    def _disagree(self, waiting: list[Rank]) -> bool:
        """Whether the ranks went different ways for certain."""
        recordings = self._progress.recordings
        return find_disagreement(recordings, self._through(waiting)).certain

    def _through(self, waiting: list[Rank]) -> frozenset[int]:
        """The ranks that have answered or died."""
        return frozenset(range(len(self._crew.ranks))) - {rank.rank for rank in waiting}

    def _take_in(self) -> list[Rank]:
        """Notes answers and deaths; the ranks that gave neither."""
        waiting = []
        for rank in self._crew.ranks:
            for message in rank.inbox:
                if isinstance(message, Answer) and message.number == self._number:
                    self.reports[rank.rank] = report = self._checked(rank, message.report)
                    if report.raised is not None:
                        self._note_failure()
                else:
                    rank.distrust(f"a {type(message).__name__} that nobody asked for")
            rank.inbox.clear()
            if rank.code is not None:
                self._note_death(rank, rank.code)
            # Its death is waited for, to be told with what it sent.
            elif rank.garbage or self.reports[rank.rank] is None:
                waiting.append(rank)
        return waiting

    def _checked(self, rank: Rank, report: RankReport) -> RankReport:
        """The report, or one that says that it is of another case or rank."""
        decoded = bool(report.digest) or report.raised is None
        if report.rank == rank.rank and (not decoded or report.digest == self._digest):
            return report
        reason = Raised(
            type="ContractError",
            message=f"rank {rank.rank} was sent case {self._digest}, but reports on case "
            f"{report.digest or '(none)'} as rank {report.rank}",
            stage="report",
            frame="",
            documented=False,
        )
        return msgspec.structs.replace(report, rank=rank.rank, digest=self._digest, raised=reason)

    def _note_failure(self) -> None:
        self._failed_at = self._failed_at or self._clock()

    def _note_death(self, rank: Rank, code: int) -> None:
        if any(death.rank == rank.rank for death in self.deaths):
            return
        self._note_failure()
        if rank.garbage:
            self.reports[rank.rank] = None  # not to be believed either
        output = rank.printed(MAX_TRACEBACK)
        if rank.killed and code < 0:
            output = f"{output}\n(killed because {rank.lost})".lstrip()
        # Read after its death: the recorder is a file, and tells how far it came.
        stage = self._crew.recordings()[rank.rank].stage
        self.deaths.append(Death(rank=rank.rank, exitcode=code, stage=stage, output=output))

    def _hang(self, waiting: list[Rank], seconds: float) -> Hang:
        recordings = self._crew.recordings()
        progress, late = self._progress, tuple(rank.rank for rank in waiting)
        # Before the stacks: to write them takes processor time, which would count as the
        # ranks' own.
        self._look(recordings)
        moves = progress.still < min(self._stall, self._grace)
        stacks = self._crew.stacks()
        found = find_disagreement(recordings, self._through(waiting))
        return Hang(
            ranks=late,
            deadline=min(seconds, self._grace if self._failed_at else self._deadline),
            stages=tuple(recording.stage for recording in recordings),
            stacks=tuple(map(_with_collective, recordings, stacks)),
            odd_ranks=found.odd_ranks,
            disagreement=found.text,
            mismatched=found.certain,
            after_failure=bool(self._failed_at),
            starved=progress.starved(late, self._deadline, whole=moves),
            still=progress.still,
            ran=tuple(usage.ran for usage in progress.since),
            waited=tuple(usage.waited for usage in progress.since),
            load=load_of_a_core(),
        )


def _with_collective(recording: Recording, stack: str) -> str:
    return f"{recording.last}\n{stack}" if recording.last else stack

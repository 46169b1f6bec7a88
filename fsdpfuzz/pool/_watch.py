"""Follows one case until every rank has answered, died or is given up."""

from __future__ import annotations

import time

import msgspec

from fsdpfuzz.observations import MAX_TRACEBACK, Death, Hang, Raised, RankReport
from fsdpfuzz.pool._crew import Crew
from fsdpfuzz.pool._disagreement import find_disagreement
from fsdpfuzz.pool._rank import Rank
from fsdpfuzz.wire import Answer, Recording

STALL = 0.8
"""Seconds without a move after which ranks that certainly disagree are given up."""
_LOOK = 0.2


class Watch:
    """``deadline`` counts from the start, ``grace`` from the first rank's failure; seconds.

    Ranks that disagree on a collective for certain, and have not moved for ``stall``, will
    not move any more: they need no deadline.
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
    ) -> None:
        self.reports: list[RankReport | None] = [None] * len(crew.ranks)
        self.deaths: list[Death] = []
        self._crew = crew
        self._deadline = deadline
        self._grace = grace
        self._number = number
        self._digest = digest
        self._stall = stall
        self._failed_at = 0.0
        self._recordings: tuple[Recording, ...] = ()
        self._moved_at = 0.0

    def wait(self, started: float) -> Hang | None:
        """Until all is known, or the hang that ended the waiting."""
        while True:
            waiting = self._take_in()
            if not waiting:
                return None
            now = time.monotonic()
            patience = self._deadline
            if self._failed_at:
                patience = min(patience, self._failed_at + self._grace - started)
            long = now - started >= min(self._grace, self._stall)
            if now - started >= patience or (long and self._is_stuck(waiting, now)):
                # This process may have been stopped or starved: what came counts.
                self._crew.poll(0.0)
                self._crew.settle()
                waiting = self._take_in()
                return self._hang(waiting, now - started) if waiting else None
            self._crew.poll(min(started + patience - now, _LOOK))

    def _is_stuck(self, waiting: list[Rank], now: float) -> bool:
        """Whether the ranks disagree for certain and have stood still."""
        recordings = self._crew.recordings()
        if recordings != self._recordings:
            self._recordings, self._moved_at = recordings, now
            return False
        if now - self._moved_at < self._stall:
            return False
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
        self._failed_at = self._failed_at or time.monotonic()

    def _note_death(self, rank: Rank, code: int) -> None:
        if any(death.rank == rank.rank for death in self.deaths):
            return
        self._note_failure()
        if rank.garbage:
            self.reports[rank.rank] = None  # not to be believed either
        output = rank.printed(MAX_TRACEBACK)
        if rank.killed and code < 0:
            output = f"{output}\n(killed because {rank.lost})".lstrip()
        stage = self._crew.recordings()[rank.rank].stage
        self.deaths.append(Death(rank=rank.rank, exitcode=code, stage=stage, output=output))

    def _hang(self, waiting: list[Rank], seconds: float) -> Hang:
        recordings = self._crew.recordings()
        stacks = self._crew.stacks()
        found = find_disagreement(recordings, self._through(waiting))
        return Hang(
            ranks=tuple(rank.rank for rank in waiting),
            deadline=min(seconds, self._grace if self._failed_at else self._deadline),
            stages=tuple(recording.stage for recording in recordings),
            stacks=tuple(map(_with_collective, recordings, stacks)),
            odd_ranks=found.odd_ranks,
            disagreement=found.text,
            mismatched=found.certain,
            after_failure=bool(self._failed_at),
        )


def _with_collective(recording: Recording, stack: str) -> str:
    return f"{recording.last}\n{stack}" if recording.last else stack

"""What the jobs of a campaign have claimed and told each other: the other side of `Peers`."""

from __future__ import annotations

from fsdpfuzz.loop._causes import Cause

JOBS_A_TURN = 4
"""Of so many jobs one may reduce at a time: two that reduce at once may be at the same cause."""


class Board:
    """Answers the questions of all jobs, which are known by their numbers."""

    def __init__(self, jobs: int) -> None:
        self._turns = max(1, jobs // JOBS_A_TURN)
        self._owners: dict[str, int] = {}
        self._causes: list[Cause] = []
        self._reducing: set[int] = set()
        self._in_line: dict[int, int] = {}
        """Jobs that wait for a turn, in order, and how many causes each has seen."""

    def first(self, job: int, name: str) -> bool:
        """See `Peers.first`."""
        return self._owners.setdefault(name, job) == job

    def news(self, seen: int) -> tuple[Cause, ...]:
        """The causes behind the first ``seen``."""
        return tuple(self._causes[seen:])

    # News first: a job that knows all causes may find that it has no new one to reduce.
    def turn(self, job: int, seen: int, *, wait: bool) -> bool | None:
        """See `Peers.turn`; None where `due` will have the answer."""
        if seen < len(self._causes):
            return False
        if len(self._reducing) < self._turns:
            self._reducing.add(job)
            return True
        if wait:
            self._in_line[job] = seen
            return None
        return False

    def reduced(self, job: int, seen: int, cause: Cause | None) -> bool:
        """See `Peers.reduced`."""
        if cause is not None:
            if seen < len(self._causes):
                return False
            self._causes.append(cause)
            for key in (cause.found.finding.key, *cause.found.also):
                self._owners.setdefault(key, job)
        self._reducing.discard(job)
        return True

    # A key that it owns nobody else would book: the others only book what is theirs.
    def gone(self, job: int) -> None:
        """The job came to no good end: what it met and did not tell of is free again."""
        self._reducing.discard(job)
        self._in_line.pop(job, None)
        self._owners = {name: owner for name, owner in self._owners.items() if owner != job}

    def due(self) -> dict[int, bool]:
        """The answers that jobs have waited for and that can be given now."""
        answers = {}
        waiting, self._in_line = self._in_line, {}
        for job, seen in waiting.items():
            answer = self.turn(job, seen, wait=True)
            if answer is not None:
                answers[job] = answer
        return answers

"""Whether ranks that do not answer move on, are starved of processors, or stand still."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fsdpfuzz.pool._usage import Usage
from fsdpfuzz.wire import Recording

ONE = 0.5
"""Share of the time for which a rank with nothing to do may want a processor: its helpers wake
up now and then, and stand in line for long where the machine is busy."""
ALL = 0.7
"""The same for all ranks together: of ranks that wait for each other one always wants one."""


class Progress:
    """Looks at all ranks again and again.

    A rank that is late looks like one that went another way: it has issued fewer collectives
    than the others. The two are told apart by time: as long as any rank moves none is stuck, and
    none that stands still is while it stands in line for a processor.
    """

    def __init__(self) -> None:
        self.recordings: tuple[Recording, ...] = ()
        self.since: tuple[Usage, ...] = ()
        """What each rank had of the processors since any of them moved."""
        self.still = 0.0
        """Seconds since any of them moved."""
        self._whole: tuple[Usage, ...] = ()
        self._watched = 0.0
        self._first: tuple[Usage, ...] = ()
        self._first_at = 0.0
        self._moved: tuple[Usage, ...] = ()
        self._moved_at = 0.0

    def look(
        self,
        recordings: tuple[Recording, ...],
        usage: Sequence[Usage],
        *,
        before: float,
        after: float,
    ) -> None:
        """Takes in where the ranks are, and what they had of the processors so far.

        That was read between the two times. Time counts from after one reading to before the
        next: were this process off its processor in between, ranks that stand in line all the
        while would look as if they had rested.
        """
        if not self._first:
            self._first, self._first_at = tuple(usage), after
        # Any rank counts: while one moves, the others may well wait for it.
        if recordings != self.recordings:
            self.recordings, self._moved, self._moved_at = recordings, tuple(usage), after
        self.still = max(0.0, before - self._moved_at)
        self._watched = max(0.0, before - self._first_at)
        self.since, self._whole = _since(usage, self._moved), _since(usage, self._first)

    def stuck(self, ranks: Collection[int], enough: float) -> bool:
        """Whether each of those ranks has nothing to do, or had ``enough`` seconds of processor."""
        late = self._short(self.since, ranks, enough)
        return not _want([usage.ran + usage.waited for usage in late], self.still) and not any(
            usage.blocked for usage in late
        )

    def starved(self, ranks: Collection[int], enough: float, *, whole: bool) -> bool:
        """Whether some of those ranks may only be slow for want of a processor, disk or memory.

        Since any rank moved, or with ``whole`` since the first look.
        """
        since, seconds = (self._whole, self._watched) if whole else (self.since, self.still)
        late = self._short(since, ranks, enough)
        in_line = _want([usage.waited for usage in late], seconds)
        # Nothing was measured, so nothing can be said: the doubt is for the case.
        return seconds <= 0.0 or in_line or any(usage.blocked for usage in late)

    def _short(self, since: Sequence[Usage], ranks: Collection[int], enough: float) -> list[Usage]:
        """What those had that did not have enough."""
        return [since[rank] for rank in ranks if since[rank].ran < enough]


def _want(wanted: Sequence[float], seconds: float) -> bool:
    """Whether any of the ranks wanted a processor that long, and not just its helpers did."""
    return max(wanted, default=0.0) > ONE * seconds or sum(wanted) > ALL * seconds


def _since(usage: Sequence[Usage], before: Sequence[Usage]) -> tuple[Usage, ...]:
    return tuple(now.since(then) for now, then in zip(usage, before, strict=True))

"""How long to wait for a case: the time that clean cases took, times a factor."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

from fsdpfuzz.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds. A case has ``factor`` times the median of the clean ones, within the bounds.

    The first ``learning`` clean cases of a pool have the whole ``ceiling``; the median is
    that of the last ``window``. When a rank failed, the others have ``grace_factor`` times
    the median, within the grace's bounds, to answer.
    """

    floor: float = 3.0
    ceiling: float = 60.0
    factor: float = 20.0
    learning: int = 5
    window: int = 51
    grace_factor: float = 4.0
    grace_floor: float = 0.3
    grace_ceiling: float = 3.0

    def __post_init__(self) -> None:
        if not 0 < self.floor <= self.ceiling:
            raise UsageError(
                f"deadlines from {self.floor} to {self.ceiling} s: give 0 < floor <= ceiling"
            )
        if not 0 < self.grace_floor <= self.grace_ceiling:
            raise UsageError(
                f"grace from {self.grace_floor} to {self.grace_ceiling} s: "
                "give 0 < grace_floor <= grace_ceiling"
            )


class Pace:
    """What a pool has learnt of how long cases take."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._bounds = deadlines
        self._clean = 0
        self._seconds: deque[float] = deque(maxlen=deadlines.window)
        self._median = 0.0

    def learn(self, seconds: float) -> None:
        """A clean case took this long."""
        self._clean += 1
        self._seconds.append(seconds)
        self._median = statistics.median(self._seconds)

    def deadline(self, *, patient: bool = False) -> float:
        """Seconds for the next case; the ceiling if ``patient``."""
        bounds = self._bounds
        if patient or self._clean < bounds.learning:
            return bounds.ceiling
        # The median, not the mean: one case that took a
        # minute must not stretch all later deadlines.
        return min(max(bounds.factor * self._median, bounds.floor), bounds.ceiling)

    def grace(self, *, patient: bool = False) -> float:
        """Seconds for the other ranks once one has failed; never above the ceiling."""
        bounds = self._bounds
        if patient or self._clean < bounds.learning:
            return min(bounds.grace_ceiling, bounds.ceiling)
        wanted = max(bounds.grace_factor * self._median, bounds.grace_floor)
        return min(wanted, bounds.grace_ceiling, bounds.ceiling)

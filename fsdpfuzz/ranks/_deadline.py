"""How long a case may take: a multiple of what clean cases took."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

_REMEMBERED = 64


@dataclass(slots=True, kw_only=True)
class Deadlines:
    """Bounds in seconds, and the running median of clean cases between them.

    A hang costs a whole deadline each time that shrinking tries it, so the deadline
    follows the cases: ``factor`` times their median. Until ``warmup`` cases have run clean
    it is the ceiling, since first cases pay for lazy initialisation.
    """

    floor: float = 3.0
    ceiling: float = 60.0
    factor: float = 30.0
    warmup: int = 3
    _seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def current(self) -> float:
        """Seconds that the next case may take."""
        if len(self._seconds) < self.warmup:
            return self.ceiling
        return min(self.ceiling, max(self.floor, self.factor * median(self._seconds)))

    def grace(self) -> float:
        """Seconds that the other ranks get after one has failed."""
        return min(3.0, max(0.3, self.current() / 8))

    def passed(self, seconds: float) -> None:
        """Learns from a clean case."""
        self._seconds.append(seconds)

    def copy(self) -> Deadlines:
        """The same bounds without the memory, for another pool."""
        return Deadlines(
            floor=self.floor, ceiling=self.ceiling, factor=self.factor, warmup=self.warmup
        )

"""How the examples of a campaign are dealt out to its jobs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from fsdpfuzz.loop._derived import derived_seed
from fsdpfuzz.loop._settings import RunSettings

_KEPT = 4
"""Of a job's share one part in so many is dealt out later, to whoever is done first."""
_PIECES = 32
"""Into so many pieces a job those parts are cut: what the last job is at when all others are done
is a small part of a run, however long its cases took."""
_LEAST = 10
"""Examples: in fewer hardly anything is drawn of each property."""


class Portion(msgspec.Struct, frozen=True):
    """Examples that a job is to run, and the seed that they are drawn with."""

    seed: int
    examples: int


class Portions:
    """What of the examples of each backend has not been dealt out yet.

    Which examples there are depends on the seed of the campaign and the number of its jobs alone;
    which job runs them also on how long each takes.
    """

    def __init__(self, jobs: Sequence[RunSettings], seed: int) -> None:
        self.first: list[RunSettings] = []
        """The jobs with what each of them begins with."""
        self._left: dict[str, deque[Portion]] = {}
        kept: dict[str, int] = {}
        largest: dict[str, int] = {}
        for job in jobs:
            backend, share = job.session.backend, job.max_examples
            later = share // _KEPT if share >= _KEPT * _LEAST and len(jobs) > 1 else 0
            self.first.append(replace(job, max_examples=share - later))
            kept[backend] = kept.get(backend, 0) + later
            largest[backend] = max(_LEAST, share // _PIECES, largest.get(backend, 0))
        for on, examples in kept.items():
            pieces = self._left[on] = deque()
            while examples:
                piece = min(examples, largest[on])
                name = (seed, "portion", on, len(pieces))
                pieces.append(Portion(derived_seed(*name) % 2**32, piece))
                examples -= piece

    def next(self, backend: str) -> Portion | None:
        """The next one for a job on that backend; None if there is none left."""
        left = self._left[backend]
        return left.popleft() if left else None

"""One property of a run: rounds of drawing.

A round never fails: what it draws depends on the seed alone, so the cases of a run are the
same whatever they show. Findings are reduced without Hypothesis, from the case that shows them.
"""

from __future__ import annotations

from fsdpfuzz.case import CaseSpec, digest
from fsdpfuzz.loop._derived import derived_seed
from fsdpfuzz.loop._events import Notice
from fsdpfuzz.loop._hypothesis import StopRound, drive
from fsdpfuzz.loop._ledger import Ledger
from fsdpfuzz.loop._properties import Property, Scope
from fsdpfuzz.loop._settings import RunSettings

FIRST_ROUND = 3
"""Cases of a property's first round: so all properties are met soon."""
SPARE = 6
"""Draws for each case that is to run; some are the same case again, and some are skipped."""


def is_over(settings: RunSettings, ledger: Ledger) -> bool:
    """Whether the run has no time left to draw in."""
    return settings.max_seconds is not None and ledger.seconds >= settings.max_seconds


class Hunt:
    """Generates the cases of one property."""

    def __init__(self, settings: RunSettings, ledger: Ledger, item: Property, share: int) -> None:
        self.name = item.name
        self.left = share
        """Cases that are still to be run."""
        self._seed = settings.session.seed
        self._ledger = ledger
        self._settings = settings
        scope = Scope(
            apis=settings.apis,
            world_sizes=settings.world_sizes,
            offers=settings.session.offers,
            model=settings.model,
            plan=settings.plan,
            around=settings.around,
            words=settings.words,
        )
        self._strategy = item.strategy(scope)
        self._rounds = 0
        self._exhausted = False

    def go_on(self, share: int, seed: int) -> None:
        """With so many more cases, of another seed; not where there are no different ones left."""
        if not self._exhausted:
            self.left, self._seed, self._rounds = share, seed, 0

    def round(self) -> None:
        """Runs a few different cases. The last is left under way."""
        size = FIRST_ROUND if self._rounds == 0 else self._settings.round_examples
        fresh = min(self.left, size)
        seed = derived_seed(self._seed, self.name, self._rounds)
        self._rounds += 1
        made = self._drawn(fresh, seed)
        self.left -= made
        if not made and not is_over(self._settings, self._ledger):
            text = f"{self.name}: found no more different cases to run"
            self._ledger.emit(Notice(text=text))
            self.left, self._exhausted = 0, True

    def _drawn(self, fresh: int, seed: int) -> int:
        """Draws until ``fresh`` cases were begun; how many it was."""
        made = 0

        def body(case: CaseSpec) -> None:
            nonlocal made
            name = digest(case)
            if name in self._ledger.seen:
                return
            # Before it is begun: a case that is skipped is not looked at again either.
            self._ledger.seen.add(name)
            if self._ledger.begin(case, self.name):
                made += 1
            if made >= fresh or is_over(self._settings, self._ledger):
                raise StopRound

        # A bound, so that a strategy with hardly a new case left comes to an end.
        drive(self._strategy, body, seed=seed, max_examples=fresh * SPARE + 10)
        return made

"""One property of a run: rounds of drawing, and the shrinking of what they meet.

A drawing round never fails: what it draws depends on the seed alone, so the cases of a run
are the same whatever they show. To shrink a finding, the same round is drawn once more,
answered from memory, and fails at the cases that show it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import Phase

from fsdpfuzz.loop._events import Notice, Shrinking
from fsdpfuzz.loop._hypothesis import (
    GENERATE,
    GENERATE_AND_SHRINK,
    REUSE_AND_SHRINK,
    StopRound,
    derived_seed,
    drive,
    open_database,
    shrink_limits,
)
from fsdpfuzz.loop._ledger import Ledger
from fsdpfuzz.loop._profiles import Profile
from fsdpfuzz.loop._properties import Property, Scope
from fsdpfuzz.loop._session import Examined
from fsdpfuzz.loop._settings import RunSettings
from fsdpfuzz.loop._trim import MAX_TRIES, trim
from fsdpfuzz.spec import CaseSpec, digest, encode
from fsdpfuzz.verdict import Finding, error_type

MAX_REUSED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origin:
    """What gives a round's cases again: its seed, and how many cases Hypothesis may draw."""

    seed: int
    number: int


class Hunt:
    """Generates the cases of one property and shrinks its findings."""

    def __init__(self, settings: RunSettings, ledger: Ledger, item: Property) -> None:
        self._ledger = ledger
        self._session = ledger.session
        self._name = item.name
        self._settings = settings
        self._profile = settings.session.profile
        self._strategy = item.strategy(Scope(apis=settings.apis, world_sizes=settings.world_sizes))
        self._database = open_database(settings.database, settings.session.output, item.name)
        self._under_way: tuple[CaseSpec, _Origin, float] | None = None
        self._waiting: dict[str, _Origin] = {}
        """Findings to shrink, by key, and the round that showed each first."""

    def reuse(self) -> None:
        """Tries the failing cases that Hypothesis's database has from earlier runs."""
        if self._database is not None:
            self._shrink(None, _Origin(seed=0, number=MAX_REUSED))

    def generate(self, share: int) -> None:
        """Runs ``share`` different cases, and shrinks what they show between rounds."""
        done = 0
        for round_index in range(share):
            if done >= share:
                break
            fresh = min(share - done, self._settings.round_examples)
            seed = derived_seed(self._settings.session.seed, self._name, round_index)
            # Some cases are drawn twice; the round ends as soon as it has its fresh ones.
            made = self._round(fresh, _Origin(seed=seed, number=fresh + fresh // 10 + 10))
            done += made
            if self._waiting:
                self._shrink_waiting()
            if not made:
                text = f"{self._name}: found no more than {done} different cases to run"
                self._ledger.emit(Notice(text=text))
                break
        self._shrink_waiting()

    def _round(self, fresh: int, origin: _Origin) -> int:
        """Generates up to ``fresh`` cases; how many it was. The last is left under way.

        While the ranks are at a case the next one is drawn.
        """
        made = 0

        def body(case: CaseSpec) -> None:
            nonlocal made
            name = digest(case)
            if name in self._ledger.seen:
                return
            self._ledger.seen.add(name)
            self._finish()
            self._session.begin(case)
            self._under_way = (case, origin, time.monotonic())
            made += 1
            if made >= fresh:
                raise StopRound

        self._drive(body, GENERATE, origin)
        return made

    def _finish(self) -> None:
        """Waits for the case that is under way, if there is one, and books it."""
        if self._under_way is None:
            return
        (case, origin, began), self._under_way = self._under_way, None
        examined = self._session.examine(case)
        self._ledger.count(examined, self._name, time.monotonic() - began)
        for finding in _steady_news(examined):
            self._waiting.setdefault(finding.key, origin)

    def _shrink_waiting(self) -> None:
        self._finish()
        waiting, self._waiting = self._waiting, {}
        for key, origin in waiting.items():
            if key not in self._ledger.done:
                self._shrink(key, origin)

    def _shrink(self, key: str | None, origin: _Origin) -> None:
        """Shrinks ``key`` from the round that showed it; None: all that the database shows.

        Findings that show up only while shrinking are shrunk along; those that wait for a
        shrinking of their own are let pass.
        """
        ledger = self._ledger
        chase = _Chase(
            hunted=set() if key is None else {key},
            spared=ledger.done | (set() if key is None else ledger.new_keys - {key}),
        )
        budget = _Budget(self._profile)

        def body(case: CaseSpec) -> None:
            if not self._session.is_cached(case) and not budget.take():
                return
            examined = self._session.examine(case)
            ledger.meet(examined, self._name)
            finding = chase.pick(examined)
            if finding is None:
                return
            if examined.fresh and chase.smallest(finding.key) is examined:
                budget.progressed()
            ledger.emit(
                Shrinking(
                    key=finding.key,
                    tries=budget.spent,
                    bytes=len(encode(chase.smallest(finding.key).case)),
                    restarts=self._session.restarts,
                )
            )
            raise error_type(finding.key)(finding)

        phases = REUSE_AND_SHRINK if key is None else GENERATE_AND_SHRINK
        try:
            with shrink_limits(self._profile.shrink_seconds):
                self._drive(body, phases, origin)
        except KeyboardInterrupt:
            for found_key in chase.keys:
                smallest = chase.smallest(found_key)
                ledger.shrunk(found_key, smallest, self._name, chase.steps(found_key))
            raise
        for found_key in chase.keys:
            self._take_minimal(found_key, chase)

    def _take_minimal(self, key: str, chase: _Chase) -> None:
        """Books the smallest case that shows the finding when it is run again."""
        steps = chase.steps(key)
        for examined in chase.best(key):
            again = self._session.confirm(examined.case)
            if any(finding.key == key for finding in again.news):
                break
            steps -= 1
        self._ledger.shrunk(key, self._trimmed(key, again), self._name, steps)

    def _trimmed(self, key: str, examined: Examined) -> Examined:
        """The case without what the strategy must draw and the finding does not need."""

        def shows(tried: Examined) -> bool:
            return any(finding.key == key for finding in _steady_news(tried))

        if not shows(examined):
            return examined
        tries = min(MAX_TRIES, self._profile.shrink_tries)
        case = trim(examined.case, lambda c: shows(self._session.examine(c)), max_tries=tries)
        if case == examined.case:
            return examined
        again = self._session.confirm(case)
        return again if shows(again) else examined

    def _drive(
        self, body: Callable[[CaseSpec], None], phases: tuple[Phase, ...], origin: _Origin
    ) -> None:
        drive(
            self._strategy,
            body,
            profile=self._profile,
            phases=phases,
            seed=origin.seed,
            max_examples=origin.number,
            database=self._database,
        )


class _Chase:
    """The cases that showed the hunted findings, in the course of one shrinking."""

    def __init__(self, hunted: set[str], spared: set[str]) -> None:
        self._hunted = hunted
        self._spared = spared
        self._failing: dict[str, dict[str, Examined]] = {}
        self._last: dict[str, Examined] = {}
        self._smallest: dict[str, Examined] = {}

    @property
    def keys(self) -> tuple[str, ...]:
        """The findings that were met."""
        return tuple(self._failing)

    def pick(self, examined: Examined) -> Finding | None:
        """The finding to fail with, a hunted one first."""
        news = _steady_news(examined)
        chosen = [finding for finding in news if finding.key in self._hunted] or [
            finding for finding in news if finding.key not in self._spared
        ]
        if not chosen:
            return None
        key = chosen[0].key
        self._hunted.add(key)
        self._failing.setdefault(key, {}).setdefault(examined.digest, examined)
        self._last[key] = examined
        if _size(examined) <= _size(self._smallest.setdefault(key, examined)):
            self._smallest[key] = examined
        return chosen[0]

    def smallest(self, key: str) -> Examined:
        """The case with the shortest JSON so far."""
        return self._smallest[key]

    def best(self, key: str) -> list[Examined]:
        """The minimal case; should it have failed by chance, larger ones in growing steps.

        The minimal one is the last that showed the finding: Hypothesis ends by running it.
        """
        last = self._last[key]
        others = sorted(
            (case for case in self._failing[key].values() if case.digest != last.digest), key=_size
        )
        steps = [others[2**i - 1] for i in range(len(others).bit_length())]
        return [last, *steps, next(iter(self._failing[key].values()))]

    def steps(self, key: str) -> int:
        """How many other cases showed the finding on the way."""
        return len(self._failing[key]) - 1


def _size(examined: Examined) -> tuple[int, bytes]:
    text = encode(examined.case)
    return len(text), text


class _Budget:
    """What shrinking one finding may cost: seconds, and cases that were not known before."""

    def __init__(self, profile: Profile) -> None:
        self._end = time.monotonic() + profile.shrink_seconds
        self._left = profile.shrink_tries
        self._patience = self._stall = profile.shrink_stall
        self.spent = 0

    def take(self) -> bool:
        """Whether one more case may run; once False, always False."""
        if min(self._left, self._patience) <= 0 or time.monotonic() > self._end:
            self._left = 0
            return False
        self._left -= 1
        self._patience -= 1
        self.spent += 1
        return True

    def progressed(self) -> None:
        """Something smaller was found."""
        self._patience = self._stall


def _steady_news(examined: Examined) -> list[Finding]:
    """New findings that fail each time; shrinking a flaky one would follow the noise."""
    return [finding for finding in examined.news if finding.key not in examined.rates]

"""Makes the case of a finding smaller and plainer until nothing can go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count

import msgspec

from fsdpfuzz.case import DIMENSIONS, CaseSpec, Dimension, digest, encode
from fsdpfuzz.reduce.neighbours import plainest, simpler, usable
from fsdpfuzz.reduce.tree import smaller_models
from fsdpfuzz.verdict import Finding

MAX_RUNS = 300

Examine = Callable[[CaseSpec], Finding | None]
"""Runs a case; the finding that it shows for the same cause, or None."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """What is left of a case."""

    case: CaseSpec
    finding: Finding
    runs: int
    """Cases that were run."""
    steps: int
    """How many of them showed the finding."""
    complete: bool
    """Whether every neighbour was tried; False where runs or time had an end before."""


def reduce(
    case: CaseSpec,
    finding: Finding,
    examine: Examine,
    *,
    max_runs: int = MAX_RUNS,
    seconds: float = 120.0,
) -> Reduced:
    """The smallest case that is found to show ``finding`` still.

    First what comes after the finding goes, then all options at once, or half of them, then
    parts of the model, then one neighbour at a time (`simpler`) until none shows it any more.
    At most ``max_runs`` cases are run, for about ``seconds``.
    """
    hunt = _Hunt(case, finding, examine, max_runs, time.monotonic() + seconds)
    try:
        # Cheap things first: an operation that is gone is run by no later trial.
        hunt.shorten()
        hunt.flatten(DIMENSIONS)
        hunt.take_first(smaller_models)
        hunt.finish()
    except _EnoughError:
        return hunt.result(complete=False)
    return hunt.result(complete=True)


class _EnoughError(Exception):
    """Runs or time have come to an end."""


@dataclass(slots=True)
class _Hunt:
    case: CaseSpec
    finding: Finding
    examine: Examine
    left: int
    end: float
    runs: int = 0
    steps: int = 0
    tried: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.tried.add(digest(self.case))

    def result(self, *, complete: bool) -> Reduced:
        return Reduced(self.case, self.finding, self.runs, self.steps, complete)

    def shows(self, case: CaseSpec) -> bool:
        """Runs a case, unless it was run before, and goes on from it if it shows the finding."""
        name = digest(case)
        # Neighbours of neighbours are mostly the same cases again.
        if name in self.tried or not usable(self.case, case):
            return False
        if self.runs >= self.left or time.monotonic() > self.end:
            raise _EnoughError
        self.tried.add(name)
        self.runs += 1
        found = self.examine(case)
        if found is None:
            return False
        self.case, self.finding = case, found
        self.steps += 1
        return True

    def shorten(self) -> None:
        """Drops the operations behind the one that the finding is about."""
        last = self.finding.op
        if 0 <= last < len(self.case.program) - 1:
            program = self.case.program[: last + 1]
            self.shows(msgspec.structs.replace(self.case, program=program))

    def flatten(self, dimensions: tuple[Dimension, ...]) -> None:
        """Sets many dimensions back at once; where that hides the finding, half as many."""
        active = tuple(d for d in dimensions if plainest(self.case, (d,)) != self.case)
        if not active:
            return
        if self.shows(plainest(self.case, active)) or len(active) == 1:
            return
        middle = len(active) // 2
        self.flatten(active[:middle])
        self.flatten(active[middle:])

    def take_first(self, smaller: Callable[[CaseSpec], Iterable[CaseSpec]]) -> None:
        """Takes the first neighbour that shows it, again and again."""
        # `smaller` is asked anew each time: its neighbours are those of the case as it is by then.
        while any(self.shows(case) for case in smaller(self.case)):
            pass

    def finish(self) -> None:
        """One neighbour at a time; after one that shows it the ones behind it come first."""
        position = 0
        for _ in count():
            neighbours = [neighbour.case for neighbour in simpler(self.case)]
            order = neighbours[position:] + neighbours[:position]
            found = next((i for i, case in enumerate(order) if self.shows(case)), None)
            if found is None:
                return
            # Not from the start: what was in vain a moment ago is mostly in vain still.
            position = (position + found) % max(1, len(neighbours))


def size_of(case: CaseSpec) -> tuple[int, bytes]:
    """By which of two cases is the smaller: the length of its JSON, then the JSON."""
    text = encode(case)
    return len(text), text

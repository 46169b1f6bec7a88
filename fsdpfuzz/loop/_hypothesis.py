"""Cases by Hypothesis's strategies, drawn without its engine."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeVar

from hypothesis.control import BuildContext
from hypothesis.errors import StopTest
from hypothesis.internal.conjecture.data import ConjectureData
from hypothesis.strategies import SearchStrategy

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.strategies.drawing import purpose

T = TypeVar("T")


class Sequences:
    """Random integers, those of each purpose from a sequence of their own.

    So those of one do not move when another makes more or fewer of them.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._base: int | None = None
        self._own: dict[str, Random] = {}

    def below(self, values: int) -> int:
        """An integer from 0 on, one of so many, each as likely as the others."""
        name = purpose()
        own = self._own.get(name)
        if own is None:
            if self._base is None:
                self._base = self._random.getrandbits(64)
            own = self._own[name] = Random(f"{self._base} {name}")
        return int(own.random() * values)


class _Data(ConjectureData):
    """What strategies draw from.

    Hypothesis keeps each choice, and each span of them, so as to shrink a failing example, which
    is two thirds of the time of a draw. The loop reduces a finding from its case.
    """

    def __init__(self, random: Random, simplest: bool) -> None:
        super().__init__(random=random)
        self._sequences = None if simplest else Sequences(random)

    def draw(
        self, strategy: SearchStrategy[T], label: int | None = None, observe_as: str | None = None
    ) -> T:
        """A value of another strategy."""
        return strategy.do_draw(self)

    def draw_integer(
        self,
        min_value: int | None = None,
        max_value: int | None = None,
        *,
        weights: dict[int, float] | None = None,
        shrink_towards: int = 0,
        forced: int | None = None,
        observe: bool = True,
    ) -> int:
        """An integer between two bounds, both included, each as likely as the others."""
        if min_value is None or max_value is None or forced is not None:
            return super().draw_integer(
                min_value,
                max_value,
                weights=weights,
                shrink_towards=shrink_towards,
                forced=forced,
                observe=observe,
            )
        if self._sequences is None:
            return min(max(shrink_towards, min_value), max_value)
        return min_value + self._sequences.below(max_value - min_value + 1)


class StopRound(BaseException):
    """Leaves a round at once, whatever `Exception` is caught on the way."""


def drive(
    strategy: SearchStrategy[CaseSpec],
    body: Callable[[CaseSpec], None],
    *,
    seed: int,
    max_examples: int,
) -> None:
    """Runs ``body`` on ``max_examples`` drawn cases at most, or until it raises `StopRound`.

    Any other exception of ``body`` leaves this function. The same seed, number and strategy give
    the same cases, of which the first is the simplest: it needs the fewest things to go right.
    """
    random = Random(seed)
    try:
        for number in range(max_examples):
            data = _Data(random, simplest=number == 0)
            try:
                with BuildContext(data, wrapped_test=body):
                    case = data.draw(strategy)
            except StopTest:
                # A strategy has filtered it away.
                continue
            body(case)
    except StopRound:
        pass

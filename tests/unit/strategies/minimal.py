"""The simplest value of a strategy for which a condition holds."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st

from fsdpfuzz.loop._hypothesis import BACKEND

T = TypeVar("T")

FAST = settings(
    max_examples=4000,
    database=None,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    # Else it looks on for up to ten seconds of the clock, and begins with the least that it saw.
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    # Hypothesis's own draws hang on the integers in the source of whatever is imported.
    backend=BACKEND,
)


class _Reached(BaseException):
    """Leaves Hypothesis at once, which takes any `Exception` for a failing example."""


def minimal(
    strategy: st.SearchStrategy[T],
    condition: Callable[[T], Any] = lambda _: True,
    *,
    start: int = 0,
) -> T:
    """What a failure that needs only ``condition`` shrinks to.

    Where that is one of several local minima, ``start`` decides which.
    """
    return find(strategy, condition, settings=FAST, random=Random(start))


def shrinks_to(
    simple: Callable[[T], bool],
    strategy: st.SearchStrategy[T],
    condition: Callable[[T], Any],
    *,
    start: int = 0,
) -> T:
    """The first ``simple`` value to which a failure that needs only ``condition`` shrinks.

    Hypothesis takes most of its time to find that there is nothing simpler still, and from a
    value on it only goes to simpler ones. The error shows what is left where none is reached.

    From the same ``start`` one test has ended elsewhere, rarely, in a process that ran others, and
    nobody knows why: so it is asked once more, from that start and no other.
    """
    reached: list[T] = []
    left: list[T] = []

    def holds(value: T) -> bool:
        if not condition(value):
            return False
        if simple(value):
            reached.append(value)
            raise _Reached
        return True

    for _ in range(2):
        try:
            left.append(find(strategy, holds, settings=FAST, random=Random(start)))
        except _Reached:
            return reached[0]
    raise AssertionError(f"all that it shrinks to is {left!r}")

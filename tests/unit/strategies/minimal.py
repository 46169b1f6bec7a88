"""The simplest value of a strategy for which a condition holds."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, TypeVar
from unittest.mock import patch

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from tests.unit.strategies.engine import BACKEND

T = TypeVar("T")

FAST = settings(
    max_examples=4000,
    database=None,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    # Else it looks on for up to ten seconds of the clock, and begins with the least that it saw.
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
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
    return _find(strategy, condition, start)


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
    """
    reached: list[T] = []

    def holds(value: T) -> bool:
        if not condition(value):
            return False
        if simple(value):
            reached.append(value)
            raise _Reached
        return True

    try:
        left = _find(strategy, holds, start)
    except _Reached:
        return reached[0]
    raise AssertionError(f"all that it shrinks to is {left!r}")


def _find(strategy: st.SearchStrategy[T], condition: Callable[[T], Any], start: int) -> T:
    """What Hypothesis's ``find`` gives, whatever else was imported before.

    Its shrinker draws what a shorter case lacks by Hypothesis's own provider, whatever the backend,
    and that one takes some integers from the source of all modules imported by then.
    """
    with patch.object(providers, "_get_local_constants", Constants):
        providers.CONSTANTS_CACHE.cache.clear()
        try:
            return find(strategy, condition, settings=FAST, random=Random(start))
        finally:
            providers.CONSTANTS_CACHE.cache.clear()

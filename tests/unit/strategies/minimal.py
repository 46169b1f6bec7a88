"""The simplest value of a strategy for which a condition holds."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st

T = TypeVar("T")

FAST = settings(
    max_examples=4000,
    database=None,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


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

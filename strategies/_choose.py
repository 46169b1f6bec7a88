"""Choices that are cheap to draw and shrink to "off" or to the first option.

A case costs Hypothesis one choice per decision, so decisions are plain integers: building
a strategy object for each would cost more than training the case. All of them come from
one strategy, because Hypothesis also makes new cases by copying choices within an old one,
and replaces a copy that its new place does not permit by the simplest value: with bounds of
their own, decisions would drift towards "off".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")

LOTS = 128
"""How many values a decision is drawn from; Hypothesis draws so few of them evenly."""

_lots = st.integers(0, LOTS - 1)


class Draw(Protocol):
    """What ``@st.composite`` hands to a strategy."""

    def __call__(self, strategy: st.SearchStrategy[T], label: object = None) -> T:
        """A value of ``strategy``."""


def between(draw: Draw, low: int, high: int) -> int:
    """An integer from ``low`` to ``high``, both included. Shrinks towards ``low``."""
    return low + draw(_lots) % (high - low + 1)


def pick(draw: Draw, options: Sequence[T]) -> T:
    """One of ``options``; the first is the simplest. A single one costs no choice."""
    return options[0] if len(options) == 1 else options[draw(_lots) % len(options)]


def mask(draw: Draw, size: int) -> list[bool]:
    """A flag for each of ``size`` things, half of them True. Shrinks towards few True ones.

    Always two choices, and the flags repeat after 14: a model that shrinks must not shift
    the choices that come after it.
    """
    bits = draw(_lots) + LOTS * draw(_lots)
    return [bool(bits >> i % 14 & 1) for i in range(size)]


def chance(draw: Draw, percent: int) -> bool:
    """True in about ``percent`` of 100 draws. Shrinks towards False."""
    return draw(_lots) >= LOTS - LOTS * percent // 100

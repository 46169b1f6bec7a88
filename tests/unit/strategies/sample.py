"""What the strategies draw, drawn once and shared by the tests of this folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.statistics import collector

from fsdpfuzz.case import NEWER, CaseSpec
from fsdpfuzz.loop._hypothesis import BACKEND
from fsdpfuzz.strategies import FOCUSES, cases
from fsdpfuzz.strategies.drawing import Focus

SIZE = 1000
WORLD_SIZES = (2, 3, 4)


@dataclass(frozen=True, slots=True)
class Sample:
    """Draws of one strategy, and with what status Hypothesis ended its attempts."""

    cases: tuple[CaseSpec, ...]
    statuses: Mapping[str, int]


def drawn(
    strategy: st.SearchStrategy[CaseSpec],
    count: int,
    start: int = 1,
    *,
    backend: str = BACKEND,
) -> Sample:
    """``count`` draws as the loop makes them; the same ones for the same ``start``."""
    found: list[CaseSpec] = []
    statuses: Counter[str] = Counter()

    @seed(start)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        backend=backend,
    )
    @given(strategy)
    def collect(case: CaseSpec) -> None:
        found.append(case)

    def count_statuses(stats: dict[str, Any]) -> None:
        statuses.update(one["status"] for one in stats["generate-phase"]["test-cases"])

    # Hypothesis declares the variable by its default, None.
    with collector.with_value(count_statuses):  # type: ignore[arg-type]
        collect()
    return Sample(tuple(found), statuses)


@cache
def sample(focus: Focus, start: int = 1) -> Sample:
    """`SIZE` draws of a focus over both APIs and world sizes 2 to 4, on the newest torch."""
    return drawn(cases(focus=focus, world_sizes=WORLD_SIZES, offers=tuple(NEWER)), SIZE, start)


@cache
def in_a_test(focus: Focus) -> Sample:
    """`SIZE` draws of a focus as a test of one's own has them: some vary earlier ones."""
    strategy = cases(focus=focus, world_sizes=WORLD_SIZES, offers=tuple(NEWER))
    return drawn(strategy, SIZE, backend="hypothesis")


@cache
def large(focus: Focus) -> tuple[CaseSpec, ...]:
    """Twice as many draws of a focus."""
    return (*sample(focus).cases, *sample(focus, 2).cases)


@cache
def everything() -> tuple[CaseSpec, ...]:
    """The different cases among the large samples of all focuses."""
    return tuple(dict.fromkeys(case for focus in FOCUSES for case in large(focus)))

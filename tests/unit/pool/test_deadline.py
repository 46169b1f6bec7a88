"""A deadline follows the clean cases and stays within its bounds."""

from __future__ import annotations

import pytest

from fsdpfuzz.errors import UsageError
from fsdpfuzz.pool._deadline import Deadlines, Pace

BOUNDS = Deadlines(floor=2.0, ceiling=30.0, factor=10.0, learning=2, window=5)


def taught(*seconds: float, bounds: Deadlines = BOUNDS) -> Pace:
    pace = Pace(bounds)
    for each in seconds:
        pace.learn(each)
    return pace


@pytest.mark.parametrize(
    ("seconds", "deadline"),
    [
        ((), 30.0),
        ((0.1,), 30.0),
        ((0.1, 0.1), 2.0),
        ((0.5, 0.5, 0.5), 5.0),
        ((0.5, 0.5, 60.0), 5.0),
        ((9.0, 9.0), 30.0),
        ((9.0,) * 5 + (0.5,) * 3, 5.0),
    ],
    ids=["new", "learning", "floor", "factor", "outlier", "ceiling", "window"],
)
def test_the_deadline_follows_the_median(seconds: tuple[float, ...], deadline: float) -> None:
    assert taught(*seconds).deadline() == deadline


def test_patience_waits_for_the_ceiling() -> None:
    pace = taught(0.1, 0.1)
    assert pace.deadline(patient=True) == 30.0
    assert pace.grace(patient=True) == 3.0


@pytest.mark.parametrize(
    ("seconds", "grace"), [((), 3.0), ((0.01,) * 3, 0.3), ((0.5,) * 3, 2.0), ((9.0,) * 3, 3.0)]
)
def test_the_grace_follows_within_its_own_bounds(seconds: tuple[float, ...], grace: float) -> None:
    assert taught(*seconds).grace() == grace


def test_the_grace_never_outlasts_the_ceiling() -> None:
    assert taught(bounds=Deadlines(floor=0.5, ceiling=1.0)).grace() == 1.0


@pytest.mark.parametrize(
    "bounds",
    [
        {"floor": 0.0},
        {"floor": 5.0, "ceiling": 1.0},
        {"grace_floor": 0.0},
        {"grace_floor": 9.0},
        {"floor": float("nan")},
    ],
)
def test_bounds_that_make_no_sense_are_refused(bounds: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="give 0 <"):
        Deadlines(**bounds)  # type: ignore[arg-type]

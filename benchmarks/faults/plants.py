"""What ``--plant benchmarks.faults.plants:ID`` calls in each rank."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.faults import FAULTS, plant

NAME = __name__


def __getattr__(name: str) -> Callable[[object], None]:
    """The plant of a fault by its id."""
    if name not in FAULTS:
        raise AttributeError(f"there is no fault {name!r}")
    return lambda _: plant(FAULTS[name])

"""What ``--inject benchmarks.faults.injections:ID`` calls in each rank."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.faults import FAULTS, inject

NAME = __name__


def __getattr__(name: str) -> Callable[[object], None]:
    """The injection of a fault by its id."""
    if name not in FAULTS:
        raise AttributeError(f"there is no fault {name!r}")
    return lambda _: inject(FAULTS[name])

"""What is minimised."""

from __future__ import annotations

from fsdpfuzz.strategies.drawing import Drawing


def draw(d: Drawing) -> None:
    """The projection in most draws: a plain sum does not tell outputs that change places.

    In low precision always: the sum of what a norm puts out is rounding alone. Shrinks towards
    the projection.
    """
    exact = all(unit.precision is None for unit in d.case.plan.units)
    if d.chance(5) and exact:
        d.put(loss="sum")

"""Computation that starts late on a GPU."""

from __future__ import annotations

from fsdpfuzz.strategies.drawing import Drawing


def draw(d: Drawing) -> None:
    """In a few draws. Shrinks towards none."""
    if d.chance(8):
        d.put(lag=True)

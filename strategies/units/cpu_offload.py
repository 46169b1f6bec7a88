"""Offload of parameters to the CPU."""

from __future__ import annotations

from fsdpfuzz.strategies.drawing import Drawing, all_units


def draw(d: Drawing) -> None:
    """The same in all units. Shrinks towards False."""
    if d.chance(5, memory=25) and not d.apart:
        all_units(d, "cpu_offload", True)

"""``limit_all_gathers``."""

from __future__ import annotations

from fsdpfuzz.strategies.drawing import Drawing, all_units


def draw(d: Drawing) -> None:
    """The same in all units, as FSDP wants it. Shrinks towards True."""
    if d.chance(19):
        all_units(d, "limit_all_gathers", False)

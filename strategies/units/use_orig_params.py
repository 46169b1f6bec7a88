"""``use_orig_params``."""

from __future__ import annotations

from fsdpfuzz.strategies.drawing import Drawing, all_units, one_unit


def draw(d: Drawing) -> None:
    """The same in all units, but for a few draws: FSDP refuses them. Shrinks towards False."""
    value = d.chance(50) and not d.flat
    all_units(d, "use_orig_params", value)
    if d.chance(6) and not d.apart:
        one_unit(d, "use_orig_params", not value)

"""Ignored parameters."""

from __future__ import annotations

from fsdpfuzz.case.units.ignored import shared_with_others
from fsdpfuzz.case.units.ignored_parameters import NAME
from fsdpfuzz.strategies.drawing import Drawing
from fsdpfuzz.strategies.units.ignored import IN_TRAINING, left_alone


def draw(d: Drawing) -> None:
    """One or two parameters of a unit that manages others. Shrinks towards none."""
    if d.parting != "never" or not d.chance(IN_TRAINING):
        return
    possible = {
        path: [p.fqn for p in d.a.owned[path] if shared_with_others(d.a, p.fqn) is None]
        for path, unit in d.a.options.items()
        if len(d.a.owned[path]) > 1 and not unit.ignored
    }
    left_alone(d, NAME, possible, most=2)

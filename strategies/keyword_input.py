"""Inputs that the program passes by keyword."""

from __future__ import annotations

import msgspec

from fsdpfuzz.case import is_sound
from fsdpfuzz.case.units.precision import computed_in
from fsdpfuzz.strategies.drawing import Drawing


def draw(d: Drawing) -> None:
    """By keyword in a tenth of the draws, more where FSDP casts inputs. Shrinks towards by
    position."""
    if d.chance(35 if any(computed_in(unit) for unit in d.case.plan.units) else 10):
        asked = msgspec.structs.replace(d.case, keyword_input=True)
        # A reentrant checkpoint may be asked for, which passes no keyword arguments on.
        d.case = asked if is_sound(asked) else d.case

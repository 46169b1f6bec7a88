"""Mixed precision."""

from __future__ import annotations

from typing import Literal

from fsdpfuzz.case import Dropout, Gain, Precision
from fsdpfuzz.strategies.drawing import Drawing, all_units

_HALF: tuple[Literal["bfloat16", "float16"], ...] = ("bfloat16", "float16")


def draw(d: Drawing) -> None:
    """One for all units: what a unit puts out has to fit the next one. Shrinks towards none.

    A buffer would have to be cast as well, and then differ from the reference's by that. The
    gradient of a gain is a sum over all that it scales, which may cancel but for rounding. What
    a norm makes of a row that was dropped can leave the range of float16.
    """
    if not d.chance(6, fine_tune=40, memory=40) or d.apart:
        return
    if any(place.buffers or isinstance(place.node, Dropout | Gain) for place in d.a.places):
        return
    precision = Precision(param=d.pick(_HALF), reduce=d.pick((None, "float32")))
    all_units(d, "precision", precision)

"""Mixed precision."""

from __future__ import annotations

from typing import Literal

from fsdpfuzz.case import Dropout, Gain, Precision
from fsdpfuzz.strategies.drawing import Drawing, all_units

_HALF: tuple[Literal["bfloat16", "float16"], ...] = ("bfloat16", "float16")
_REDUCED: tuple[Literal["float32"] | None, ...] = (None, "float32", "float32")


def draw(d: Drawing) -> None:
    """One for all units: what a unit puts out has to fit the next one. Shrinks towards none.

    Buffers are cast as parameters are, which fsdp2 cannot do: what they scale has to fit the next
    layer. The gradient of a gain is a sum over all that it scales, which may cancel but for
    rounding. What a norm makes of a row that was dropped can leave the range of float16.
    """
    buffers = any(place.buffers for place in d.a.places)
    if any(isinstance(place.node, Dropout | Gain) for place in d.a.places) or (
        buffers and not (d.a.fsdp1 and "" in d.a.units)
    ):
        return
    often = 15 if buffers else 6
    if not d.chance(often, fine_tune=40, memory=40) or d.apart:
        return
    param, reduce = d.pick(_HALF), d.pick(_REDUCED)
    buffer = param if buffers else None
    all_units(d, "precision", Precision(param=param, reduce=reduce, buffer=buffer))

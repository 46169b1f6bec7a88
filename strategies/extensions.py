"""Parameters that say what fsdp2 gathers of them."""

from __future__ import annotations

import msgspec

from fsdpfuzz.case import is_sound
from fsdpfuzz.case.extensions import WAYS, Extension, may_be_extended
from fsdpfuzz.strategies.drawing import Drawing


def draw(d: Drawing) -> None:
    """Some of those that may, in one way or each in its own.

    Shrinks towards none, then towards one that is gathered in two parts.
    """
    wanted, flags, ways = d.chance(12), d.mask(14), d.mask(14)
    way, several = d.pick(WAYS), d.chance(30)
    allowed = may_be_extended(d.a) if wanted else ()
    chosen = [name for name, flag in zip(allowed, flags, strict=False) if flag] or allowed[:1]
    told = tuple(
        Extension(parameter=name, sends=WAYS[ways[i % 14]] if several else way)
        for i, name in enumerate(chosen)
    )
    case = msgspec.structs.replace(d.case, extensions=told)
    if told and is_sound(case):
        d.case = case

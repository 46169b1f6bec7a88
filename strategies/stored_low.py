"""Frozen linear layers that are stored in bfloat16."""

from __future__ import annotations

import msgspec

from fsdpfuzz.case import is_sound
from fsdpfuzz.case.stored_low import may_be_stored_low
from fsdpfuzz.strategies.drawing import Drawing


def draw(d: Drawing) -> None:
    """Some of those that may be, as the base of a model under adapters. Shrinks towards none."""
    wanted, flags = d.chance(35, fine_tune=50), d.mask(14)
    allowed = may_be_stored_low(d.a) if wanted else ()
    if not allowed:
        return
    chosen = tuple(path for path, flag in zip(allowed, flags, strict=False) if flag) or allowed
    case = msgspec.structs.replace(d.case, stored_low=chosen)
    if is_sound(case):
        d.case = case

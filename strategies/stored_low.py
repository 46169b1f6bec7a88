"""Frozen linear layers that are stored in bfloat16."""

from __future__ import annotations

import msgspec

from fsdpfuzz.case import Anatomy, is_sound
from fsdpfuzz.case.stored_low import may_be_stored_low
from fsdpfuzz.strategies.drawing import Drawing


def draw(d: Drawing) -> None:
    """Some of those that may be, as the base of a model under adapters.

    Of fsdp1 units of which all may be, but for a few draws: what becomes one flat parameter has one
    dtype. Shrinks towards none.
    """
    wanted, flags, mixed = d.chance(35, fine_tune=50), d.mask(14), d.chance(5)
    allowed = may_be_stored_low(d.a) if wanted else ()
    chosen = tuple(path for path, flag in zip(allowed, flags, strict=False) if flag) or allowed
    if d.a.fsdp1 and not mixed:
        chosen = _in_units_by_themselves(d.a, allowed)
    if not chosen:
        return
    case = msgspec.structs.replace(d.case, stored_low=chosen)
    if is_sound(case):
        d.case = case


def _in_units_by_themselves(a: Anatomy, layers: tuple[str, ...]) -> tuple[str, ...]:
    """The layers beside which no unit has other parameters, under no plan."""
    names = {path: {p.fqn for p in a.by_path[path].parameters} for path in layers}
    while True:
        low = set().union(*names.values())
        apart = {
            p.fqn
            for b in a.under_each_plan
            for owned in b.owned.values()
            if not {p.fqn for p in owned} <= low
            for p in owned
        }
        left = {path: own for path, own in names.items() if not own & apart}
        if len(left) == len(names):
            return tuple(left)
        names = left

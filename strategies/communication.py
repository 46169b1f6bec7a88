"""How units communicate."""

from __future__ import annotations

from typing import get_args

import msgspec

from fsdpfuzz.case import is_sound
from fsdpfuzz.case.communication import CommHook, Communication, refuses_hook
from fsdpfuzz.strategies.drawing import Drawing


def draw(d: Drawing) -> None:
    """The user's collectives or memory of the process group, and a hook: any of them.

    Of fsdp1 a hook that is now and then refused. None in most draws, nor where ranks part.

    Shrinks towards none.
    """
    wanted, own, other = d.chance(9), d.chance(50), d.chance(30)
    hooked = d.chance(50)
    kind, again, which = d.pick(get_args(CommHook)), d.chance(6), d.between(0, 127)
    if d.apart or not wanted:
        return
    if d.a.fsdp1:
        units = d.a.units
        _hook(d, kind, units[which % len(units)] if again else None)
        return
    told = Communication(own=own, allocated=other and not own, hooked=hooked)
    if told != Communication():
        d.put(communication=told)


def _hook(d: Drawing, kind: CommHook, again: str | None) -> None:
    """A hook of fsdp1, one of the user's where torch has none for all units."""
    plans = d.a.under_each_plan
    # What is refused is refused when the model is wrapped first.
    if len(plans) > 1 and any(refuses_hook(a) for a in plans):
        return
    for told in (kind, "own"):
        hook = Communication(comm_hook=told, again=again)
        if is_sound(msgspec.structs.replace(d.case, communication=hook)):
            d.put(communication=hook)
            return

"""How units of fsdp2 communicate."""

from __future__ import annotations

from fsdpfuzz.case.communication import Communication
from fsdpfuzz.strategies.drawing import Drawing


def draw(d: Drawing) -> None:
    """The user's collectives or memory of the process group, and a hook: any of them.

    None in most draws, nor where ranks part. Shrinks towards none.
    """
    wanted, own, other = d.chance(9), d.chance(50), d.chance(30)
    hooked = d.chance(50)
    if d.a.fsdp1 or d.apart or not wanted:
        return
    told = Communication(own=own, allocated=other and not own, hooked=hooked)
    if told != Communication():
        d.put(communication=told)

"""``share_comm_ctx`` of fsdp2."""

from __future__ import annotations

from fsdpfuzz.strategies.drawing import Drawing


def draw(d: Drawing) -> None:
    """A fifth of the models with several roots share their streams. Shrinks towards not shared.

    Not where a handle is waited for at the end of a backward.
    """
    handle = d.case.finalization == "async"
    if d.chance(20) and not d.a.fsdp1 and len(d.a.roots) > 1 and not handle:
        d.put(share_comm_ctx=True)

"""``set_keep_unsharded_storage`` of fsdp2."""

from __future__ import annotations

from fsdpfuzz.strategies.drawing import Drawing


def draw(d: Drawing) -> None:
    """Kept in a few draws, more of them for memory. Shrinks towards not kept."""
    if d.chance(6, memory=15) and not d.a.fsdp1:
        d.put(keep_unsharded_storage=True)

"""``forward_prefetch``."""

from __future__ import annotations

from fsdpfuzz.strategies.drawing import Drawing, each_unit


def draw(d: Drawing) -> None:
    """Either, mostly the same in all units; none where forwards differ. Shrinks towards False."""
    if not d.apart and not d.a.numbered:
        each_unit(d, "forward_prefetch", lambda: d.chance(40))

"""``torch.distributed``'s debug level."""

from __future__ import annotations

from fsdpfuzz.strategies.drawing import Drawing


def draw(d: Drawing) -> None:
    """Any, for the execution order; else OFF in most draws. Shrinks towards OFF."""
    if d.chance(6, exec_order=80):
        d.put(debug_level=d.pick(("DETAIL", "DETAIL", "INFO")))

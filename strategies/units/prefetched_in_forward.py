"""What units prefetch in forward."""

from __future__ import annotations

from fsdpfuzz.strategies.drawing import Drawing
from fsdpfuzz.strategies.units.prefetch_list import lists


def draw(d: Drawing) -> None:
    """Mostly the units that come next in forward. Shrinks towards none."""
    lists(d, "prefetched_in_forward", reverse=False)

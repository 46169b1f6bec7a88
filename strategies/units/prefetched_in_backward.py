"""What units prefetch in backward."""

from __future__ import annotations

from fsdpfuzz.strategies.drawing import Drawing
from fsdpfuzz.strategies.units.prefetch_list import lists


def draw(d: Drawing) -> None:
    """Mostly the units that come next in backward. Shrinks towards none."""
    lists(d, "prefetched_in_backward", reverse=True)

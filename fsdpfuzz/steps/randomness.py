"""Seeds of forwards that differ between ranks."""

from __future__ import annotations

# More than there are forwards, and a multiple of how many of its layers and none `LayerDrop`
# counts: which one is left out stays the same on all ranks.
APART = 2520
"""Seeds between one rank's and the next one's for the same forward."""


def on_rank(number: int, batch: int) -> int:
    """The seed of a forward, another one for each batch."""
    return number + APART * batch

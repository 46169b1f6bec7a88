"""Keeping a GPU busy."""

from __future__ import annotations

import torch

CYCLES = 20_000_000
"""Of a GPU's clock: about ten milliseconds."""


# Whoever reads what a stream writes, or takes memory that it still uses, without waiting for it,
# mostly gets away with that where layers and collectives are small.
def linger(device: torch.device) -> None:
    """Keeps the current stream of a GPU busy for a while."""
    if device.type == "cuda":
        torch.cuda._sleep(CYCLES)

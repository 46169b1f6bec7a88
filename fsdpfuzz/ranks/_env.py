"""What a rank knows of itself and of the machine while it runs a case."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from fsdpfuzz.ranks._board import Board


@dataclass(slots=True, kw_only=True)
class RankEnv:
    """One rank. ``collectives`` counts the calls since it was last cleared."""

    rank: int
    world_size: int
    device: torch.device
    backend: str
    board: Board
    collectives: dict[str, int] = field(default_factory=dict)

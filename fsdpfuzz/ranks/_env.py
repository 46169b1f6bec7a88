"""What code in a rank knows about where it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from fsdpfuzz.ranks._groups import Groups
from fsdpfuzz.wire import FlightRecorder


@dataclass(slots=True, kw_only=True)
class RankEnv:
    """A rank of a running process group. ``collectives`` counts calls by name.

    ``issued`` lists them as they come: kind, dtype, and elements of what this rank hands in.
    """

    rank: int
    world_size: int
    backend: str
    device: torch.device
    flight: FlightRecorder
    folder: Path = Path()
    """The pool's private folder; gone when the pool is."""
    collectives: dict[str, int] = field(default_factory=dict)
    issued: list[str] = field(default_factory=list)
    groups: Groups = field(default_factory=Groups)

    def anywhere(self, mine: bool) -> bool:
        """Whether it is so on any rank. Every rank must ask: it runs a collective."""
        flag = torch.tensor([float(mine)], device=self.device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())

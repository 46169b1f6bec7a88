"""``shard_placement_fn``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn
from torch.distributed.tensor import Shard


def of(placements: Mapping[nn.Parameter, Shard]) -> Callable[[nn.Parameter], Shard | None]:
    """A placement for each of some parameters, and the default for all others."""
    return placements.get

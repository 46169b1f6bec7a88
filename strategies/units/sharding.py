"""``sharding_strategy``."""

from __future__ import annotations

from fsdpfuzz.case import Sharding
from fsdpfuzz.strategies.drawing import Drawing, each_unit

_ALL: tuple[Sharding, ...] = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
_LEAVES_NOTHING: tuple[Sharding, ...] = ("FULL_SHARD", "NO_SHARD")
"""``SHARD_GRAD_OP`` keeps whole what no backward reaches, as a path that is left behind."""


def draw(d: Drawing) -> None:
    """Any, mostly the same in all units. Shrinks towards FULL_SHARD."""
    values = _ALL if d.parting == "never" else _LEAVES_NOTHING
    each_unit(d, "sharding", lambda: d.pick(values))

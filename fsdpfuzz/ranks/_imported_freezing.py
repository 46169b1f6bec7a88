"""What a ``shard(model, mesh)`` of your own freezes, or trains again, by itself."""

from __future__ import annotations

from collections.abc import Iterable

from fsdpfuzz.case import Anatomy
from fsdpfuzz.ranks._sharded import Shard

FIXED = (
    "shard(model, mesh) sets requires_grad itself, or does not run with what is frozen otherwise: "
    "another freezing is tried with units made one by one"
)
"""A note on one that goes with the freezing of ``freeze(model)`` alone."""


def frozen_in(a: Anatomy, shards: Iterable[Shard]) -> tuple[str, ...]:
    """FQNs of the parameters without ``requires_grad`` in the model that was wrapped.

    Tied ones under their first name; a flat parameter stands for all that lie in it.
    """
    found = {a.canonical(shard.name) for shard in shards if not shard.held.requires_grad}
    return tuple(p.fqn for p in a.distinct if p.fqn in found)


def set_by_shard(frozen: tuple[str, ...]) -> str:
    """A note on one that freezes otherwise than ``freeze(model)``, which without FSDP follows."""
    if not frozen:
        return "shard(model, mesh) trains all parameters, so they are trained without FSDP, too"
    more = f" and {len(frozen) - 1} more" if len(frozen) > 1 else ""
    return f"shard(model, mesh) freezes {frozen[0]}{more}, so they are frozen without FSDP, too"

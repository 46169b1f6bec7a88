"""What a ``shard(model, mesh)`` of your own freezes, or trains again, by itself."""

from __future__ import annotations

from torch import nn

from fsdpfuzz.case import Anatomy
from fsdpfuzz.ranks._sharded import Sharded
from fsdpfuzz.steps.names import parameters


def frozen_in(a: Anatomy, model: nn.Module) -> tuple[str, ...]:
    """FQNs of the parameters without ``requires_grad`` in the model that was wrapped.

    Tied ones under their first name; a flat parameter stands for all that lie in it.
    """
    shards = Sharded(a, model, parameters(model, True)).shards
    found = {a.canonical(shard.name) for shard in shards if not shard.held.requires_grad}
    return tuple(p.fqn for p in a.distinct if p.fqn in found)


def set_by_shard(frozen: tuple[str, ...]) -> str:
    """A note on it: what is trained without FSDP follows."""
    if not frozen:
        return "shard(model, mesh) goes with no frozen parameter: all are trained without FSDP, too"
    more = f" and {len(frozen) - 1} more" if len(frozen) > 1 else ""
    return f"shard(model, mesh) freezes {frozen[0]}{more}, so they are frozen without FSDP, too"

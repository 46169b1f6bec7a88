"""Meshes that are remembered beyond the training that made them, here and by DTensor."""

from __future__ import annotations

from functools import cache
from typing import Any

from fsdpfuzz.steps import spmd_mesh


# ``FSDPParam._init_sharding_spec_spmd`` asks whether a parameter lies on the very mesh that
# ``fully_shard`` is given. ``nn.Parameter`` of a DTensor goes through a cache that gives back an
# equal one of an earlier training, on which the parameter then lies.
def keep_named() -> None:
    """Has all trainings of this process that name the same axes share a mesh."""
    setattr(spmd_mesh, "named", cache(spmd_mesh.named))  # noqa: B010 (mypy knows the function)


def forget_meshes() -> None:
    """Clears our meshes and DTensor's caches, which take an equal one for one without groups."""
    from torch.distributed.tensor import DTensor, _redistribute, debug

    named: Any = spmd_mesh.named
    propagator = DTensor._op_dispatcher.sharding_propagator
    # Newer torch has more of them than older torch, and a function for each.
    for owner, name in (
        (named, "cache_clear"),
        (getattr(propagator.propagate_op_sharding, "cache", None), "cache_clear"),
        (debug, "_clear_fast_path_sharding_prop_cache"),
        (debug, "_clear_sharding_prop_cache"),
        (getattr(_redistribute, "_gen_transform_infos", None), "cache_clear"),
    ):
        getattr(owner, name, lambda: None)()

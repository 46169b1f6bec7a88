"""What DTensor remembers of meshes beyond the training that made them."""

from __future__ import annotations

from fsdpfuzz.case import Anatomy


def forget_meshes() -> None:
    """Clears DTensor's caches: they take an equal mesh for a new one, whatever became of it."""
    from torch.distributed.tensor import DTensor, _redistribute, debug

    propagator = DTensor._op_dispatcher.sharding_propagator
    # Newer torch has more of them than older torch, and a function for each.
    for owner, name in (
        (getattr(propagator.propagate_op_sharding, "cache", None), "cache_clear"),
        (debug, "_clear_fast_path_sharding_prop_cache"),
        (debug, "_clear_sharding_prop_cache"),
        (getattr(_redistribute, "_gen_transform_infos", None), "cache_clear"),
    ):
        getattr(owner, name, lambda: None)()


# ``_init_sharding_spec_spmd`` asks whether a parameter lies on the very mesh that ``fully_shard``
# is given. ``nn.Parameter`` of a DTensor goes through a cache that gives it an equal one of an
# earlier training, on which it then lies.
def on_a_mesh_of_its_own(a: Anatomy) -> None:
    """Lets a training that begins name the axes of a mesh as if there had been no other."""
    if a.case.spmd_mesh is not None:
        forget_meshes()

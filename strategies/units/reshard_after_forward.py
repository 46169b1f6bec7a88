"""``reshard_after_forward``."""

from __future__ import annotations

from fsdpfuzz.strategies.drawing import Drawing, each_unit


def draw(d: Drawing) -> None:
    """Any, mostly the same in all units; a number divides the ranks of a replica.

    Shrinks towards None.
    """
    # ``_get_post_forward_mesh_info`` in fsdp/_fully_shard/_fsdp_init.py refuses any other number.
    size = d.case.world_size if d.case.mesh is None else d.case.mesh.shard
    sizes = tuple(n for n in range(1, size + 1) if size % n == 0)
    values: tuple[bool | int | None, ...] = (None, None, True, False, *sizes)
    if d.parting != "never":
        values = (None, True, False)
    each_unit(d, "reshard_after_forward", lambda: d.pick(values))

"""``set_gradient_divide_factor`` of fsdp2."""

from __future__ import annotations

from fsdpfuzz.case.divide_factor import DivideFactor
from fsdpfuzz.strategies.drawing import Drawing


def draw(d: Drawing) -> None:
    """Some number, with collectives that only sum up: else there is mostly need of a GPU.

    With one shard there is none, and things are the other way round; more often, too. Where they
    only sum up, the number may be the usual one.
    Shrinks towards none, then towards 1.
    """
    if d.a.fsdp1:
        return
    one = d.case.mesh is not None and d.case.mesh.shard == 1
    wanted, other = d.chance(35 if one else 8), d.chance(20)
    factor = d.pick((1.0, 2.0, 3.0, 0.5, float(d.case.world_size)))
    if wanted:
        force_sum = other is one
        # Sums alone change who divides, and not by what.
        told = None if force_sum and factor == 3.0 else factor
        d.put(divide_factor=DivideFactor(factor=told, force_sum=force_sum))

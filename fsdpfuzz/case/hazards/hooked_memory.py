"""Memory of reduced gradients that a hook of the user's is still at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import ON, Feature
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.hazards.unit_calls import called_repeatedly
from fsdpfuzz.case.operations.forward import reduced_again
from fsdpfuzz.case.units import lies_on_cpu
from fsdpfuzz.case.units.precision import reduced_in
from fsdpfuzz.case.units.replicas import is_replica

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy


class HookedMemoryDimension(Hazard):
    """What ``set_all_reduce_hook`` is given, once it is of no more use to FSDP."""

    name = "hooked_memory"
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "hooked_memory": Feature(
            about="on when nothing keeps the memory in which an all-reduce hook is given reduced "
            "gradients: they are added to those that are there, cast, or copied to the CPU, and "
            "another unit's reduce-scatter may come next on the same stream (fsdp2 only)",
            group="Training",
            values=ON,
            apis=("fsdp2",),
        ),
    }

    # ``foreach_reduce`` in fsdp/_fully_shard/_fsdp_collectives.py: a gradient that is the first
    # one, in its own dtype and place, lies in that memory.
    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """Of the unit, by its options and what its backwards meet."""
        if a.fsdp1:
            return
        unit, told = a.options[path], a.case.communication
        moved = lies_on_cpu(unit) or reduced_in(unit) not in (None, "float32")
        # Of what is reduced over replicas, too, FSDP2 keeps the memory until that has ended.
        alone = a.case.mesh is None and not is_replica(unit)
        # A root is the last one of its own streams.
        followed = path not in a.roots or a.case.share_comm_ctx
        hooked = told is not None and told.hooked and alone and followed
        # Each call of a unit reduces by itself, and is added to what another one of them left.
        added = hooked and (path in reduced_again(a, zeros=True) or called_repeatedly(a, path))
        yield "hooked_memory", on(hooked and (moved or added))

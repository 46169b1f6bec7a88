"""Units whose memory comes to be in a forward under ``torch.inference_mode``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.operations.forward import begun_in_inference
from fsdpfuzz.case.units.precision import computed_in
from fsdpfuzz.case.units.sharding import is_whole

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy


class InferenceDimension(Hazard):
    """Whether training goes on in memory that was made under ``torch.inference_mode``."""

    name = "inference"
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "inference_memory": Feature(
            about="off, on, one shard (of a unit that fsdp2 copies, as it has one shard): when the "
            "memory into which a unit is gathered, or cast, comes to be under torch.inference_mode",
            group="Training",
            values=("off", "on", "one shard"),
        )
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """It is told of units alone."""
        return iter(())

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """Of one unit; what fsdp1 neither gathers nor casts has no such memory."""
        bare = not a.owned[path]
        bare |= a.fsdp1 and is_whole(a, path) and computed_in(a.options[path]) is None
        # ``FSDPParamGroup.wait_for_unshard`` in fsdp/_fully_shard/_fsdp_param_group.py.
        way = "one shard" if not a.fsdp1 and a.shards(path) == 1 else "on"
        yield "inference_memory", way if path in begun_in_inference(a) and not bare else "off"

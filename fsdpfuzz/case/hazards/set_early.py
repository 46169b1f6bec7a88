"""Parameters whose data is set before FSDP1 knows what it shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import ON, Feature
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.operations import Rescale

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy


# ``init_flat_param_attributes`` in fsdp/_flat_param.py settles which tensor is the shard, once the
# root is first called. What was set until then is written back to what the shard was before.
@lru_cache(maxsize=64)
def set_early(a: Anatomy) -> frozenset[str]:
    """Parameters whose data is set before a forward of the model."""
    found: set[str] = set()
    early = True
    for i, op in enumerate(a.case.program):
        early = op.wraps or (early and not op.runs_model)
        if early and isinstance(op, Rescale) and op.sets_data:
            found.update(a.at(i).canonical_names(op.parameters))
    return frozenset(found)


class SetEarlyDimension(Hazard):
    """Whether a parameter's data is set so."""

    name = "set_early"
    parameter_features: ClassVar[Mapping[str, Feature]] = {
        "set_early": Feature(
            about="on when its data is set before a forward of the model (fsdp1 only)",
            group="Training",
            values=ON,
            apis=("fsdp1",),
        ),
    }

    def parameter_values(self, a: Anatomy, fqn: str) -> Iterator[tuple[str, str]]:
        """Of one."""
        if a.fsdp1:
            yield "set_early", on(a.canonical(fqn) in set_early(a))

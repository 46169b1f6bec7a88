"""Units that are told to stay whole after forward while they are sharded over fewer ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import ON, Feature
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.units.reshard_after_forward import left_by_forward

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy


# ``FSDPParamGroup._all_gather_process_group`` asks for the mesh that they were sharded over, which
# ``set_reshard_after_forward`` in fsdp/_fully_shard/_fully_shard.py has taken away.
@lru_cache(maxsize=64)
def set_on_fewer(a: Anatomy) -> frozenset[str]:
    """Units (fsdp2) of which a forward has left each rank a part for fewer ranks by then."""
    found: set[str] = set()
    on_fewer: set[str] = set()
    for i, op in enumerate(a.case.program if not a.fsdp1 else ()):
        after = a.at(i)
        if op.runs_model:
            on_fewer |= {path for path in after.units if left_by_forward(after, path) == "part"}
        elif op.gives_gradients or op.renews or op.starts_over:
            on_fewer.clear()
        elif op.reshards is not None:
            on_fewer.discard(op.reshards)
        elif op.changes_units:
            found |= {path for path in on_fewer if left_by_forward(after, path) == "whole"}
            on_fewer -= found
    return frozenset(found)


class SetOnFewerDimension(Hazard):
    """Whether the option changes while the unit is as the old value had it."""

    name = "set_on_fewer"
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "set_on_fewer": Feature(
            about="on when reshard_after_forward is set to False while the unit is sharded over "
            "fewer ranks (fsdp2 only)",
            group="Sharding",
            values=ON,
            apis=("fsdp2",),
        ),
    }

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """Of one unit."""
        if not a.fsdp1:
            yield "set_on_fewer", on(path in set_on_fewer(a))

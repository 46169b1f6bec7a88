"""All-gathers ahead of time that wait while their unit is sharded otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.hazards.unit_calls import calls_of_units
from fsdpfuzz.case.units.prefetch_list import listed_in_forward
from fsdpfuzz.case.units.reshard_after_forward import left_by_forward

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy


class ReshardedGatherDimension(Hazard):
    """Units that a forward gathers once more, from fewer ranks than they are sharded over then."""

    name = "resharded_gather"
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "resharded_gather": Feature(
            about="on when a list of set_modules_to_forward_prefetch has the unit gathered behind "
            "its call, which has left it over fewer ranks, and something shards it over all of "
            "them before a forward or a backward takes what was gathered (fsdp2 only)",
            group="Sharding",
            # In hardly any program, which is known to fail: no pair is waited for.
            values=("off",),
            open=True,
            apis=("fsdp2",),
        ),
    }

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """Of one unit."""
        if not a.fsdp1:
            yield "resharded_gather", on(path in resharded_gathers(a))


# ``FSDPParamGroup.wait_for_unshard`` copies out for the mesh over which the unit is sharded by
# then, not for the one that it was gathered over. ``state_dict`` shards all units
# (``FSDPParamGroup._register_state_dict_hooks``).
@lru_cache(maxsize=64)
def resharded_gathers(a: Anatomy) -> frozenset[str]:
    """Units that are sharded over all ranks while they wait for an all-gather over fewer."""
    found: set[str] = set()
    for rank in a.telling_ranks if not a.fsdp1 else ():
        on_fewer: set[str] = set()
        waiting: set[str] = set()
        for i, op, now in a.situations(rank):
            b = a.at(i)
            lists = listed_in_forward(b)
            for unit, _ in calls_of_units(b, op, now):
                waiting.discard(unit)
                waiting |= on_fewer.intersection(lists.get(unit, ()))
                if left_by_forward(b, unit) == "part":
                    on_fewer.add(unit)
            if op.gives_gradients or op.renews or op.starts_over:
                on_fewer.clear()
                waiting.clear()
            elif op.reshards is not None:
                found |= waiting & {op.reshards}
                on_fewer.discard(op.reshards)
            elif op.wraps or op.stores or op.names_state() or op.changes_units or op.converts:
                found |= waiting
    return frozenset(found)

"""Units whose post-backward hook goes as their parameters move to another device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.hazards.unit_calls import calls_of_units

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy


# ``_register_post_backward_hook`` in fsdp/_runtime_utils.py registers once until a backward ends,
# and what moves a tensor to another device makes its AccumulateGrad anew.
@lru_cache(maxsize=64)
def units_with_moved_hooks(a: Anatomy) -> frozenset[str]:
    """Units of fsdp1 that are called with grad and moved to the CPU before a backward comes."""
    found: set[str] = set()
    for rank in a.telling_ranks if a.fsdp1 else ():
        hooked: set[str] = set()
        moved: set[str] = set()
        for i, op, now in a.situations(rank):
            if op.gives_gradients:
                found |= moved
            if op.gives_gradients or op.renews:
                hooked.clear()
                moved.clear()
            elif op.moves_parameters:
                moved |= hooked
            else:
                calls = calls_of_units(a.at(i), op, now)
                hooked |= {unit for unit, call in calls if call.grad}
    return frozenset(found)


class MovedHooksDimension(Hazard):
    """Whose gradients are not reduced, as the hook that would do so is gone."""

    name = "moved_hooks"
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "hook_moved": Feature(
            about="on when full parameters go to the CPU between a forward of the unit with grad, "
            "of which no backward follows, and the next backward (fsdp1 only)",
            group="Wrapping",
            values=("off",),
            open=True,
            apis=("fsdp1",),
        ),
    }

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """Of one unit."""
        if a.fsdp1:
            yield "hook_moved", on(path in units_with_moved_hooks(a))

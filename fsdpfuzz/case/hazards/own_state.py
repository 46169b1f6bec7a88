"""Units whose own module has extra state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.modules.extra_state import stateful_places

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy


# ``_get_fqns`` in torch/distributed/checkpoint/state_dict.py goes from a wrapper of fsdp1 to what
# it wraps and looks for the rest of the name there, extra state or not. A key of the root's own has
# one part, at which it does not look.
def keeps_own_state(a: Anatomy) -> bool:
    """Whether such a unit lies below the root, under any plan."""
    paths = {path for path in stateful_places(a) if path}
    return bool(paths) and any(
        not paths.isdisjoint(a.at(op).units) for op in range(-1, len(a.case.program))
    )


class OwnStateDimension(Hazard):
    """Whether a unit's own module has extra state."""

    name = "own_state"
    features: ClassVar[Mapping[str, Feature]] = {
        "own_state": Feature(
            about="on when the module of a unit below the root has extra state of its own",
            group="Wrapping",
            # In too few programs for each pair with it to be waited for.
            values=("off",),
            open=True,
        ),
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Of any unit."""
        yield "own_state", on(keeps_own_state(a))

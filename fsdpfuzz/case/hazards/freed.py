"""Units that backward has to gather again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import ON, Feature
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.hazards.unit_calls import called_repeatedly
from fsdpfuzz.case.micro_batches import kept_whole_after
from fsdpfuzz.case.operations.forward import pending_before
from fsdpfuzz.case.sides import reentrant_around
from fsdpfuzz.case.units.reshard_after_forward import ways_left

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy


def freed_before_backward(a: Anatomy, path: str) -> bool:
    """Whether a unit of fsdp2 is not whole when a backward through it begins.

    A forward leaves it sharded, or it is sharded by hand from then to the backward, or by the
    backward of a later call, or by the first of two over one graph, or, of a unit of several
    modules, by the backward within a reentrant checkpoint around the last one.
    """
    program = a.case.program
    twice = reduced = False
    for op in program:
        reduced = op.reduces if op.waits else reduced
        twice |= op.goes_back_again and (reduced or not kept_whole_after(a.case))
    by_hand = any(
        pending and op.reshards == path
        for op, pending in zip(program, pending_before(program), strict=True)
    )
    again = twice or called_repeatedly(a, path) or _recomputed_end(a, path)
    return ways_left(a, path) != {"whole"} or by_hand or again


# The recomputation begins a forward of the unit, with a post-backward on the inputs of its own
# (``_register_post_backward_hook`` in fsdp/_fully_shard/_fsdp_param_group.py).
def _recomputed_end(a: Anatomy, path: str) -> bool:
    """Whether a reentrant checkpoint lies around the last of a unit's modules."""
    modules = a.modules_of(path)
    return len(modules) > 1 and modules[-1] in reentrant_around(a)


class FreedDimension(Hazard):
    """Whether a unit's parameters are there when backward begins, or have to be gathered."""

    name = "freed_units"
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "freed": Feature(
            about="on when backward has to gather the unit: a forward leaves it sharded, or it is "
            "sharded by hand in between, or by the backward of a later call, or by the first of "
            "two over one graph, or within a reentrant checkpoint around the last of its modules "
            "(fsdp2 only)",
            group="Sharding",
            values=ON,
            apis=("fsdp2",),
        ),
    }

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """Of one unit."""
        if not a.fsdp1:
            yield "freed", on(freed_before_backward(a, path))

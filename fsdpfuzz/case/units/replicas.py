"""Units of fsdp2 that ``replicate`` makes, and which units belong to one root."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fsdpfuzz.case.paths import innermost, within

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.wrap import Unit

NAME = "replicated"
REPLICATE = "torch.distributed._composable.replicate_with_fsdp.replicate"


def is_replica(unit: Unit | None) -> bool:
    """Whether a unit is replicated over all ranks, and not sharded."""
    return bool(getattr(unit, NAME, False))


def across(options: Mapping[str, Unit]) -> bool:
    """Whether a replicated unit lies in a sharded one that lies in a replicated one."""
    inner = [path for path, unit in options.items() if is_replica(unit)]
    outer = [path for path in options if path not in inner]
    return any(
        within(path, middle) and within(middle, top)
        for middle in outer
        for path in inner
        for top in inner
    )


# ``_ReplicateState._get_state_for_module``: a root that is replicated takes those states alone for
# its own that are replicated, too; ``FSDPState`` takes both.
def roots_of(options: Mapping[str, Unit]) -> tuple[str, ...]:
    """The units whose state is that of no other unit around them."""

    def belongs(path: str, outer: str) -> bool:
        inside = path != outer and within(path, outer)
        return inside and (is_replica(options[path]) or not is_replica(options[outer]))

    return tuple(path for path in options if not any(belongs(path, outer) for outer in options))


def belongs_to(a: Anatomy, path: str) -> str:
    """The root that the unit at ``path`` belongs to, or is."""
    root = innermost(path, frozenset(a.roots))
    return path if root is None else root

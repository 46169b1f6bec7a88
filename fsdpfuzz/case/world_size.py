"""The number of ranks, and what changes with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

import msgspec

from fsdpfuzz.case.dimension import Dimension, Simpler

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec


# Each sees what those before it made; ``WorldSizeDimension`` stands last, so that all of them are
# told of the new number while the case still has the old one.
def moved(dimensions: Iterable[Dimension], case: CaseSpec, size: int) -> CaseSpec:
    """The case on another number of ranks; it need not be sound there."""
    for dimension in dimensions:
        case = dimension.on_ranks(case, size)
    return case


class WorldSizeDimension(Dimension):
    """The number of ranks."""

    name = "world_size"
    drawn: ClassVar[bool] = False

    def __init__(self, others: Sequence[Dimension]) -> None:
        """``others`` are those that may have to change with it."""
        self._others = tuple(others)

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """`WrapDimension` names it."""
        return iter(())

    def facts(self, case: CaseSpec) -> Iterator[tuple[str, str]]:
        """How many there are."""
        yield "ranks", str(case.world_size)

    def check(self, a: Anatomy) -> None:
        """Nothing by itself: what names ranks, as a masked loss, checks that they exist."""

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """Fewer ranks, but more than one."""
        for size in range(2, case.world_size):
            yield Simpler(moved((*self._others, self), case, size))

    def on_ranks(self, case: CaseSpec, size: int) -> CaseSpec:
        """Their number."""
        return msgspec.structs.replace(case, world_size=size)

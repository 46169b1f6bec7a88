"""Units that put out a view which is changed in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import ON, Feature
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.modules.in_place import changed_views

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy


# FSDP hangs its hook for before the backward on what a unit puts out. Autograd gives a view that is
# changed in place another gradient function, and the hook stays with the old one.
class ChangedViewsDimension(Hazard):
    """Whether a unit puts out a view that is changed in place."""

    name = "changed_views"
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "viewed": Feature(
            about="on when the unit puts out a view, which another module changes in place",
            group="Model",
            values=ON,
        ),
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """It is told of units alone."""
        return iter(())

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """Of one unit."""
        yield "viewed", on(not changed_views(a).isdisjoint(a.modules_of(path)))

"""Views: those that a unit puts out and another module changes, and those that are handed on."""

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
    """Whether a unit puts out a view that is changed in place, and whether a module gets one."""

    name = "changed_views"
    features: ClassVar[Mapping[str, Feature]] = {
        "handed_view": Feature(
            about="on when a module gives one of its own a view of what it is given",
            group="Model",
            # What the kinds of modules tell in pairs, and no option of its own.
            values=("off",),
            open=True,
        ),
    }
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "viewed": Feature(
            about="on when the unit puts out a view, which another module changes in place",
            group="Model",
            values=ON,
        ),
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Whether a module gets a view; what is changed in place is told of units."""
        yield "handed_view", on(any(p.node is not None and p.node.hands_views() for p in a.places))

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """Of one unit."""
        yield "viewed", on(not changed_views(a).isdisjoint(a.modules_of(path)))

"""``ignored_modules`` of fsdp1 and ``ignored_params`` of fsdp2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from fsdpfuzz.case.dimension import ON, Feature
from fsdpfuzz.case.paths import within
from fsdpfuzz.case.recipe import Inside, Items, Value, call
from fsdpfuzz.case.units.listing import Listing, shown
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.wrap import Unit


class Ignored(Listing):
    """Modules whose parameters a unit leaves alone."""

    name = "ignored"
    free: ClassVar[bool] = False
    by_policy: ClassVar[bool] = False
    early: ClassVar[bool] = True
    feature: ClassVar[Feature] = Feature(
        about="on when any unit ignores modules", group="Wrapping", values=ON
    )

    def argument(self, unit: Unit, value: Any) -> Iterator[tuple[str, Value]]:
        """``ignored_modules`` or ``ignored_params``."""
        modules = tuple(Inside("model", path) for path in value)
        if is_fsdp1(unit):
            yield "ignored_modules", Items("list", modules) if modules else None
        elif modules:
            yield "ignored_params", call("steps.names.parameters_of", Items("list", modules))
        else:
            yield "ignored_params", None

    def words(self, value: Any) -> str:
        """``ignores 0.body``."""
        return f"ignores {shown(value)}"

    def needed(self, value: Any) -> str:
        """In two words."""
        return "ignored modules"

    def check_unit(self, a: Anatomy, unit: Unit, at: str) -> None:
        """Each is a module of the model."""
        for i, path in enumerate(unit.ignored):
            if path not in a.by_path:
                raise CaseError(f"the model has no module {path!r}", path=f"{at}[{i}]")
            if path in unit.ignored[:i]:
                raise CaseError(f"{path!r} stands here twice", path=f"{at}[{i}]")
            if (name := shared_with_others(a, path)) is not None:
                # A parameter is ignored wherever it stands, so by its other name as well.
                text = f"{path!r} shares {name!r} with a module that is not ignored"
                raise CaseError(text, path=f"{at}[{i}]")


def is_fsdp1(unit: Unit) -> bool:
    """Whether it is one of fsdp1, which has other arguments for the same."""
    return "sharding" in unit.__struct_fields__


# FSDP keeps a set of parameters, not of names (``_get_ignored_params`` in fsdp/_init_utils.py).
def shared_with_others(a: Anatomy, path: str) -> str | None:
    """A parameter, by its source, that has one name inside the module at ``path`` and one outside.

    None without any.
    """
    ties = {tie.target: tie.source for tie in a.case.ties} | a.brought_ties
    split = (s for t, s in ties.items() if within(t, path) != within(s, path))
    return next(split, None)

"""A list of modules that ``fully_shard`` makes one unit of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from fsdpfuzz.case.dimension import ON, Feature
from fsdpfuzz.case.names import check_names
from fsdpfuzz.case.paths import innermost, within
from fsdpfuzz.case.recipe import Value
from fsdpfuzz.case.units.listing import Listing, shown
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.wrap import Unit


def together(unit: Unit) -> tuple[str, ...]:
    """FQNs of the modules that are one unit, beginning with the one that it is named after."""
    return (unit.path, *unit.grouped)


class Grouped(Listing):
    """The modules of a unit beside the one that it is named after: ``fully_shard([a, b])``."""

    name = "grouped"
    of_shards: ClassVar[bool] = True
    feature: ClassVar[Feature] = Feature(
        about="on when several modules are one unit (fsdp2 only)",
        group="Wrapping",
        values=ON,
        apis=("fsdp2",),
        excludes={"on": {"units": ("1",), "nesting": ("flat",)}},
    )

    def argument(self, unit: Unit, value: Any) -> Iterator[tuple[str, Value]]:
        """None: they stand in the list that is sharded."""
        return iter(())

    def words(self, value: Any) -> str:
        """``together with 1, 2``."""
        return f"together with {shown(value)}"

    def needed(self, value: Any) -> str:
        """What the call is given."""
        return "a list of modules"

    def check_unit(self, a: Anatomy, unit: Unit, at: str) -> None:
        """Siblings which one forward calls one after the other, inside another unit.

        Of somebody's own model any modules that each forward calls.
        """
        beside: tuple[str, ...] = getattr(unit, self.name, ())
        if not beside:
            return
        check_names(beside, a.by_path, at, "module")
        others = {path for path, owner in a.unit_at.items() if owner != unit.path}
        others.update(listed.path for listed in a.plan.units)
        order, holder = list(a.by_path), _holder(unit.path)
        for i, path in enumerate(beside):
            here = f"{at}[{i}]"
            if path in others:
                raise CaseError(f"{path!r} belongs to another unit, or is this one", path=here)
            if a.imported is None and _holder(path) != holder:
                raise CaseError(f"{path!r} and {unit.path!r} are no siblings", path=here)
            if order.index(path) < order.index((unit.path, *beside)[i]):
                raise CaseError("name the modules in the model's order", path=here)
        # ``FSDPState._lazy_init`` asks it of whichever unit runs first.
        if unit.path in a.roots or not any(within(holder, other) for other in a.units):
            # FSDP2 says of a root: "requires a single root module".
            raise CaseError("modules that are one unit have to lie in another", path=at)
        if any(called_apart(a, path) for path in (unit.path, *beside)):
            raise CaseError("not all of the modules are called by each forward", path=at)


# ``_register_group_forward_hooks`` in fsdp/_fully_shard/_fsdp_state.py counts the modules that have
# run; what is missing the root makes up for in ``_force_complete_incomplete_states``.
def called_apart(a: Anatomy, path: str) -> bool:
    """Whether a forward may call the module at ``path``, or a sibling, and not the others.

    Then FSDP2 finishes the unit's forward when that of the root ends, if it does at all.
    """
    if a.imported is not None:
        return path not in a.imported.calls
    around = innermost(_holder(path), a.by_path)
    node = None if around is None else a.by_path[around].node
    if around is None or node is None or not node.calls_all:
        return True
    outside = innermost(_holder(around), a.by_path) if around else None
    caller = None if outside is None else a.by_path[outside].node
    return caller is not None and bool(caller.called_inside())


def _holder(path: str) -> str:
    """What holds a module, which may be a ``ModuleList``: siblings have the same."""
    return path.rpartition(".")[0]

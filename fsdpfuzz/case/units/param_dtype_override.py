"""``param_dtype_override_fn`` of ``MixedPrecisionPolicy``."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import TYPE_CHECKING, Any, ClassVar

from fsdpfuzz.case.dimension import ON, Feature
from fsdpfuzz.case.names import check_names
from fsdpfuzz.case.recipe import Value
from fsdpfuzz.case.units.listing import Listing, shown
from fsdpfuzz.case.units.precision import computed_in
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.wrap import Unit

NAME = "param_dtype_override"


class ParamDtypeOverride(Listing):
    """The parameters of a unit that keep their own dtype while the others compute in another."""

    name = NAME
    newer: ClassVar[tuple[str, ...]] = ("MixedPrecisionPolicy(param_dtype_override_fn)",)
    feature: ClassVar[Feature] = Feature(
        about="on when a unit's policy leaves some parameters their own dtype (fsdp2 only)",
        group="Sharding",
        values=ON,
        apis=("fsdp2",),
    )

    def asked(self, a: Anatomy) -> bool:
        """Where any do."""
        return bool(overridden(a))

    def argument(self, unit: Unit, value: Any) -> Iterator[tuple[str, Value]]:
        """None: it is a part of the precision policy."""
        return iter(())

    def words(self, value: Any) -> str:
        """``leaves 0.weight its dtype``."""
        return f"leaves {shown(value)} its dtype"

    def needed(self, value: Any) -> str:
        """Its name in PyTorch."""
        return "param_dtype_override_fn"

    def check_unit(self, a: Anatomy, unit: Unit, at: str) -> None:
        """They are parameters that the unit manages, which compute in another dtype elsewise."""
        named: tuple[str, ...] = getattr(unit, NAME, ())
        if not named:
            return
        if computed_in(unit) is None:
            raise CaseError("without param_dtype all parameters keep their dtype", path=at)
        check_names(named, {p.fqn for p in a.owned[unit.path]}, at, "parameter of the unit")


def overridden(a: Anatomy) -> Set[str]:
    """The parameters that keep their own dtype."""
    return {fqn for unit in a.options.values() for fqn in getattr(unit, NAME, ())}


# The unit's pre-forward casts all of its inputs to param_dtype, whatever a parameter keeps.
def may_be_overridden(a: Anatomy) -> Set[str]:
    """The parameters that may keep their dtype where inputs have a lower one.

    A tied one has its dtype in every module that it lies in.
    """
    takes = {
        p.fqn: place.node is not None and place.node.takes_lower_dtypes()
        for place in a.places
        for p in place.parameters
    }
    not_all = {a.canonical(fqn) for fqn, taken in takes.items() if not taken}
    return {fqn for fqn in takes if a.canonical(fqn) not in not_all}


def overrides_fit(a: Anatomy) -> bool:
    """Whether each parameter that keeps its own dtype takes inputs in a lower one."""
    return all(overridden(b) <= may_be_overridden(b) for b in a.under_each_plan)

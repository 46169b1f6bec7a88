"""``param_dtype_override_fn`` of ``MixedPrecisionPolicy``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from fsdpfuzz.case.dimension import ON, Feature, Simpler
from fsdpfuzz.case.names import check_names
from fsdpfuzz.case.recipe import Inside, Items, Value, call
from fsdpfuzz.case.units.base import Option, anywhere
from fsdpfuzz.case.units.precision import computed_in
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec
    from fsdpfuzz.case.wrap import Unit

NAME = "param_dtype_override"
MAX_NAMES = 6


class ParamDtypeOverride(Option):
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

    def text(self, value: Any) -> str:
        """``on`` where any do."""
        return "on" if value else "off"

    def merged(self, texts: Iterable[str]) -> str:
        """``on`` where any do in any unit."""
        return anywhere(texts)

    def argument(self, unit: Unit, value: Any) -> Iterator[tuple[str, Value]]:
        """None: it is a part of the precision policy."""
        return iter(())

    def words(self, value: Any) -> str:
        """``leaves 0.weight its dtype``."""
        more = len(value) - MAX_NAMES
        shown = ", ".join(value[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
        return f"leaves {shown} its dtype"

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

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """None in all units, none in one; one less."""
        yield from super().simpler(case)
        replace = msgspec.structs.replace
        units: tuple[Any, ...] = case.plan.units
        for i, unit in enumerate(units):
            named = getattr(unit, NAME, ())
            for j in range(len(named)) if len(named) > 1 else ():
                less = replace(unit, **{NAME: named[:j] + named[j + 1 :]})
                left = (*units[:i], less, *units[i + 1 :])
                yield Simpler(replace(case, plan=replace(case.plan, units=left)))


def override(unit: Unit) -> Value:
    """What the policy of a unit is handed as ``param_dtype_override_fn``."""
    named: tuple[str, ...] = getattr(unit, NAME, ())
    if not named:
        return None
    kept = Items("list", tuple(Inside("model", fqn) for fqn in named))
    return call("steps.fsdp2.param_dtype_override.keeping", kept)


def overridden(a: Anatomy) -> Set[str]:
    """The parameters that keep their own dtype."""
    return {fqn for unit in a.options.values() for fqn in getattr(unit, NAME, ())}


def may_be_overridden(a: Anatomy) -> Set[str]:
    """The parameters that may keep their dtype where inputs have a lower one."""
    return {
        p.fqn
        for place in a.places
        if place.node is not None and place.node.takes_lower_dtypes()
        for p in place.parameters
    }


def overrides_fit(a: Anatomy) -> bool:
    """Whether each parameter that keeps its own dtype takes inputs in a lower one."""
    return overridden(a) <= may_be_overridden(a)

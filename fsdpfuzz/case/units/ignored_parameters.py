"""``ignored_states`` of fsdp1 and ``ignored_params`` of fsdp2, parameter by parameter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from fsdpfuzz.case.dimension import ON, Feature
from fsdpfuzz.case.names import check_names
from fsdpfuzz.case.recipe import Inside, Items, Value
from fsdpfuzz.case.units.ignored import is_fsdp1, shared_with_others
from fsdpfuzz.case.units.listing import Listing, shown
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.wrap import Unit

NAME = "ignored_parameters"


class IgnoredParameters(Listing):
    """Parameters that a unit leaves alone, beside others of the same module that it manages."""

    name = NAME
    free: ClassVar[bool] = False
    by_policy: ClassVar[bool] = False
    early: ClassVar[bool] = True
    feature: ClassVar[Feature] = Feature(
        about="on when any unit ignores single parameters", group="Wrapping", values=ON
    )

    def argument(self, unit: Unit, value: Any) -> Iterator[tuple[str, Value]]:
        """``ignored_states`` or ``ignored_params``."""
        first = is_fsdp1(unit)
        named = tuple(Inside("model", fqn) for fqn in value)
        made = Items("list" if first else "set", named) if named else None
        yield "ignored_states" if first else "ignored_params", made

    def read(self, told: Mapping[str, Any]) -> Any:
        """Those that it left alone, though no module may have been named."""
        return told["left_alone"]

    def words(self, value: Any) -> str:
        """``ignores 0.weight``."""
        return f"ignores {shown(value)}"

    def needed(self, value: Any) -> str:
        """In two words."""
        return "ignored parameters"

    def check_unit(self, a: Anatomy, unit: Unit, at: str) -> None:
        """They are parameters with one name, of a unit that ignores no modules besides.

        fsdp1 takes either, as ``FullyShardedDataParallel`` documents of ``ignored_states``.
        """
        named: tuple[str, ...] = getattr(unit, NAME)
        check_names(named, a.by_fqn, at, "parameter")
        # ``_init_ignored_module_states`` in fsdp/_init_utils.py: "Cannot pass both".
        if named and unit.ignored:
            raise CaseError("a unit ignores modules or parameters, not both", path=at)
        for i, fqn in enumerate(named):
            if shared_with_others(a, fqn) is not None:
                raise CaseError(f"{fqn!r} has another name, too", path=f"{at}[{i}]")

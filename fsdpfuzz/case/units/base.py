"""What an option of a unit has to say of itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from fsdpfuzz.case.base import default_of
from fsdpfuzz.case.dimension import Dimension, Feature, Simpler, one
from fsdpfuzz.case.recipe import Value
from fsdpfuzz.case.units.replicas import is_replica
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec
    from fsdpfuzz.case.units.configured import Configuration
    from fsdpfuzz.case.wrap import Unit


class Option(Dimension):
    """A field of ``Fsdp1Unit`` or ``Fsdp2Unit`` (or of both) with the name of the dimension."""

    feature: ClassVar[Feature]
    early: ClassVar[bool] = False
    """Whether its argument names modules, and so is made before anything is wrapped."""
    free: ClassVar[bool] = True
    """Whether what is computed is the same with any value, up to rounding."""
    configured_by: ClassVar[tuple[str, ...]] = ()
    """The names in ``fsdp_config`` of accelerate that `configured` reads."""
    by_policy: ClassVar[bool] = True
    """Whether a policy can give it to one unit alone; else all units get the root's."""
    of_shards: ClassVar[bool] = False
    """Whether ``fully_shard`` alone takes it, and not ``replicate``."""

    def __init__(self) -> None:
        self.features: Mapping[str, Feature] = {self.name: self.feature}  # type: ignore[misc]
        self.unit_features: Mapping[str, Feature] = {self.name: self.feature}  # type: ignore[misc]

    @abstractmethod
    def text(self, value: Any) -> str:
        """The value of the feature that a unit with this value of the field has."""

    @abstractmethod
    def argument(self, unit: Unit, value: Any) -> Iterator[tuple[str, Value]]:
        """The keyword argument by which FSDP is told, for any value."""

    def taken(self, a: Anatomy, unit: Unit) -> str:
        """The same of one unit, where what FSDP makes of the value depends on the case."""
        return self.text(getattr(unit, self.name))

    def merged(self, texts: Iterable[str]) -> str:
        """The feature of a case from those of its units."""
        return one(texts)

    def read(self, told: Mapping[str, Any]) -> Any:
        """The value that a unit has of which FSDP itself tells; None for PyTorch's default.

        ``told`` has the name of the strategy, whether parameters show as they were and whether
        they lie on the CPU, dtypes by what they are for, and what is ignored.
        """
        return None

    def configured(self, kind: type[Unit], config: Configuration) -> Any:
        """The value that all units have under a configuration of accelerate.

        :class:`UsageError`, with the file and the name, for what it cannot be.
        """
        return default_of(kind, self.name)

    def words(self, value: Any) -> str:
        """A value that is not the default, as `explain` says it."""
        return self.name if value is True else f"{self.name}={value}"

    def needed(self, value: Any) -> str:
        """A value that is not the default, as ablation says it."""
        return f"{self.name}={value}"

    def check_unit(self, a: Anatomy, unit: Unit, at: str) -> None:
        """Raises :class:`CaseError` for a value that contradicts the case."""

    def has(self, unit: Unit) -> bool:
        """Whether units of this API have the option."""
        return self.name in unit.__struct_fields__

    def default(self, unit: Unit) -> object:
        """PyTorch's default."""
        return default_of(type(unit), self.name)

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """All units together."""
        units = [unit for unit in a.options.values() if self.has(unit)]
        if units:
            yield self.name, self.merged(self.taken(a, unit) for unit in units)

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """One unit's own."""
        unit = a.options[path]
        if self.has(unit):
            yield self.name, self.taken(a, unit)

    def check(self, a: Anatomy) -> None:
        """Each unit that the plan lists."""
        units: tuple[Unit, ...] = a.plan.units
        for i, unit in enumerate(units):
            at = f"$.plan.units[{i}].{self.name}"
            if self.of_shards and is_replica(unit):
                value = getattr(unit, self.name)
                if value != self.default(unit):
                    raise CaseError(f"fully_shard alone takes {self.needed(value)}", path=at)
            self.check_unit(a, unit, at)

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """PyTorch's default in all units, then in one of several."""
        units: tuple[Unit, ...] = case.plan.units
        special = [
            i
            for i, unit in enumerate(units)
            if self.has(unit) and getattr(unit, self.name) != self.default(unit)
        ]
        if not special:
            return
        words = self.needed(getattr(units[special[0]], self.name))
        yield Simpler(self._with_default(case, special), words)
        if len(special) > 1:
            for i in special:
                yield Simpler(self._with_default(case, [i]))

    def _with_default(self, case: CaseSpec, which: list[int]) -> CaseSpec:
        replace = msgspec.structs.replace
        old: tuple[Unit, ...] = case.plan.units
        units: tuple[Any, ...] = tuple(
            replace(unit, **{self.name: self.default(unit)}) if i in which else unit
            for i, unit in enumerate(old)
        )
        return replace(case, plan=replace(case.plan, units=units))


def anywhere(texts: Iterable[str]) -> str:
    """``on`` where any unit has it."""
    return "on" if "on" in set(texts) else "off"

"""What the two lists of units that fsdp2 gathers early have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from fsdpfuzz.case.dimension import ON, Feature, Simpler
from fsdpfuzz.case.names import check_names
from fsdpfuzz.case.paths import within
from fsdpfuzz.case.recipe import Do, Inside, Items, Value, call
from fsdpfuzz.case.units.base import Option, anywhere
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.spec import CaseSpec
    from fsdpfuzz.case.wrap import Unit

MAX_NAMES = 6


class PrefetchList(Option):
    """The units that a unit gathers besides itself, told once all units are made."""

    method: ClassVar[str]
    """Of ``FSDPModule``, by which it is told."""

    @property
    def passes(self) -> str:
        """In which pass: ``forward`` or ``backward``."""
        return self.name.rpartition("_")[2]

    def text(self, value: Any) -> str:
        """``on`` where any are named."""
        return "on" if value else "off"

    def merged(self, texts: Iterable[str]) -> str:
        """``on`` where any unit names some."""
        return anywhere(texts)

    def argument(self, unit: Unit, value: Any) -> Iterator[tuple[str, Value]]:
        """None: a method is called later."""
        return iter(())

    def words(self, value: Any) -> str:
        """``prefetches 1, 2 in forward``."""
        more = len(value) - MAX_NAMES
        shown = ", ".join(path or "root" for path in value[:MAX_NAMES])
        shown += f" and {more} more" if more > 0 else ""
        return f"prefetches {shown} in {self.passes}"

    def needed(self, value: Any) -> str:
        """The method."""
        return self.method

    def told(self, a: Anatomy, root: Value) -> Iterator[Do]:
        """Each unit under ``root`` that names any."""
        from fsdpfuzz.case.checkpoints import unit_module

        top = root.path if isinstance(root, Inside) else ""
        for path, unit in a.options.items():
            named = getattr(unit, self.name, ())
            if named and within(path, top):
                modules = Items("list", tuple(unit_module(a, other) for other in named))
                told = call(f".{self.method}", unit_module(a, path), modules)
                yield Do(call=told, who="fsdp")

    def check_unit(self, a: Anatomy, unit: Unit, at: str) -> None:
        """They are other units, under the same root."""
        named: tuple[str, ...] = getattr(unit, self.name, ())
        if not named:
            return
        check_names(named, a.options, at, "unit")
        for i, path in enumerate(named):
            if path == unit.path:
                raise CaseError("a unit does not prefetch itself", path=f"{at}[{i}]")
            if not a.common_root(path, unit.path):
                raise CaseError(f"{path!r} lies under another root", path=f"{at}[{i}]")

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """None in all units, none in one; one less."""
        yield from super().simpler(case)
        replace = msgspec.structs.replace
        units: tuple[Any, ...] = case.plan.units
        for i, unit in enumerate(units):
            named = getattr(unit, self.name, ())
            for j in range(len(named)) if len(named) > 1 else ():
                less = replace(unit, **{self.name: named[:j] + named[j + 1 :]})
                left = (*units[:i], less, *units[i + 1 :])
                yield Simpler(replace(case, plan=replace(case.plan, units=left)))


def feature(name: str) -> Feature:
    """Whether any are named."""
    return Feature(
        about=f"on when a unit is told what it gathers {name.replace('_', ' ')} (fsdp2 only)",
        group="Sharding",
        values=ON,
        apis=("fsdp2",),
        excludes={"on": {"units": ("1",), "nesting": ("flat",)}},
    )


def listed(a: Anatomy, name: str) -> Mapping[str, Sequence[str]]:
    """What each unit names that names any, by the name of the option."""
    found = {path: getattr(unit, name, ()) for path, unit in a.options.items()}
    return {path: named for path, named in found.items() if named}

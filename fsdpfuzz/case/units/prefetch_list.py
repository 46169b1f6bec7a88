"""What the two lists of units that fsdp2 gathers early have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from fsdpfuzz.case.dimension import ON, Feature
from fsdpfuzz.case.names import check_names
from fsdpfuzz.case.recipe import Do, Inside, Items, Value, call
from fsdpfuzz.case.sides import unit_module
from fsdpfuzz.case.units.listing import Listing, shown
from fsdpfuzz.case.units.replicas import belongs_to
from fsdpfuzz.errors import CaseError

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.wrap import Unit


class PrefetchList(Listing):
    """The units that a unit gathers besides itself, told once all units are made."""

    method: ClassVar[str]
    """Of ``FSDPModule``, by which it is told."""

    @property
    def passes(self) -> str:
        """In which pass: ``forward`` or ``backward``."""
        return self.name.rpartition("_")[2]

    def argument(self, unit: Unit, value: Any) -> Iterator[tuple[str, Value]]:
        """None: a method is called later."""
        return iter(())

    def words(self, value: Any) -> str:
        """``prefetches 1, 2 in forward``."""
        return f"prefetches {shown(path or 'root' for path in value)} in {self.passes}"

    def needed(self, value: Any) -> str:
        """The method."""
        return self.method

    def told(self, a: Anatomy, root: Value) -> Iterator[Do]:
        """Each unit under ``root`` that names any."""
        top = root.path if isinstance(root, Inside) else ""
        for path, unit in a.options.items():
            named = getattr(unit, self.name, ())
            if named and belongs_to(a, path) == top:
                modules = Items("list", tuple(unit_module(a, other) for other in named))
                # ``_assert_all_fsdp_modules`` refuses a module that is no unit yet, so it waits for
                # all of them.
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
            # The streams and events of an all-gather are shared below one root
            # (``_init_shared_state``).
            if not a.common_root(path, unit.path):
                raise CaseError(f"{path!r} lies under another root", path=f"{at}[{i}]")


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


def listed_in_forward(a: Anatomy) -> Mapping[str, Sequence[str]]:
    """By each unit that has such a list, those that it gathers early in forward."""
    return listed(a, "prefetched_in_forward")


def listed_in_backward(a: Anatomy) -> Mapping[str, Sequence[str]]:
    """By each unit that has such a list, those that it gathers early in backward."""
    return listed(a, "prefetched_in_backward")

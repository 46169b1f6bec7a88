"""What options that list modules, units or parameters have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from fsdpfuzz.case.dimension import Simpler
from fsdpfuzz.case.units.base import Option, anywhere

if TYPE_CHECKING:
    from fsdpfuzz.case.spec import CaseSpec

MAX_SHOWN = 6
"""How many of a list are said."""


class Listing(Option):
    """A list of what is meant; empty is PyTorch's default."""

    def text(self, value: Any) -> str:
        """``on`` where it lists any."""
        return "on" if value else "off"

    def merged(self, texts: Iterable[str]) -> str:
        """``on`` where any unit lists some."""
        return anywhere(texts)

    def simpler(self, case: CaseSpec) -> Iterator[Simpler]:
        """None in all units, none in one; one less."""
        yield from super().simpler(case)
        replace = msgspec.structs.replace
        units: tuple[Any, ...] = case.plan.units
        for i, unit in enumerate(units):
            listed = getattr(unit, self.name, ())
            for j in range(len(listed)) if len(listed) > 1 else ():
                less = replace(unit, **{self.name: listed[:j] + listed[j + 1 :]})
                left = (*units[:i], less, *units[i + 1 :])
                yield Simpler(replace(case, plan=replace(case.plan, units=left)))


def shown(texts: Iterable[str]) -> str:
    """``a, b and 3 more``."""
    every = list(texts)
    more = len(every) - MAX_SHOWN
    return ", ".join(every[:MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")

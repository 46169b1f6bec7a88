"""Parameters whose name is a part of another one's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.base import on
from fsdpfuzz.case.dimension import ON, Feature
from fsdpfuzz.case.hazards.base import Hazard

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy


# By the names alone: all cases of one model have the same, and there may be thousands.
@lru_cache(maxsize=64)
def _within_others(names: tuple[str, ...]) -> frozenset[str]:
    text = "\n".join(names)
    return frozenset(name for name in names if text.count(name) > 1)


class NestedNamesDimension(Hazard):
    """Where names are replaced as text, such a name is found where it does not stand."""

    name = "nested_names"
    parameter_features: ClassVar[Mapping[str, Feature]] = {
        "name_within": Feature(
            about="on when the parameter's FQN is a part of another one's, as 0.weight of "
            "1.0.weight",
            group="Model",
            values=ON,
        ),
    }

    def parameter_values(self, a: Anatomy, fqn: str) -> Iterator[tuple[str, str]]:
        """Of one parameter."""
        yield "name_within", on(fqn in _within_others(tuple(p.fqn for p in a.distinct)))

"""How many collectives of which kind are promised."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Kind = Literal["all_gather", "reduce_scatter", "all_reduce"]
KINDS: tuple[Kind, ...] = ("all_gather", "reduce_scatter", "all_reduce")
ANY = 10**9
"""More collectives than there can be."""


def collective(kind: str, dtype: str, numel: int) -> str:
    """A collective by its kind, and by dtype and elements of what a rank hands in."""
    return f"{kind} {dtype} {numel}"


class Bounds(NamedTuple):
    """How many there are at least, and at most."""

    least: int
    most: int

    def __str__(self) -> str:
        if self.least == self.most:
            return str(self.least)
        if self.most >= ANY:
            return f"at least {self.least}"
        return f"{self.least} to {self.most}"


SHARDED, WHOLE, EITHER = Bounds(1, 1), Bounds(0, 0), Bounds(0, 1)
"""What the next call of a unit costs by the state in which it finds the unit."""


@dataclass(slots=True)
class Traffic:
    """The collectives of one operation on one rank. What is not named is not issued."""

    numbers: dict[str, Bounds] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    """A unit of which each one can be."""
    order: tuple[str, ...] = ()
    """All-gathers, all different, in the order of the units' calls; empty where nothing is promised
    of it."""
    early: tuple[tuple[str, str], ...] = ()
    """Prefetches: pairs of which the first comes before the second."""

    def add(self, text: str, number: Bounds, unit: str) -> None:
        """So many more of a collective."""
        old = self.numbers.get(text, WHOLE)
        self.numbers[text] = Bounds(old.least + number.least, old.most + number.most)
        self.units.setdefault(text, unit)

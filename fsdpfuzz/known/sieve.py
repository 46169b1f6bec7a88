"""All known defects asked of a case at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fsdpfuzz.case import Anatomy, case_features
from fsdpfuzz.known.defect import Predicate

_Asked = tuple[str, tuple[str, ...]]
"""A feature of the case, and the values that it may have."""


@dataclass(slots=True)
class _Node:
    """Predicates that agree in what they ask of the case so far."""

    whole: list[str] = field(default_factory=list)
    """Those that ask no more of it."""
    further: dict[_Asked, _Node] = field(default_factory=dict)


class Sieve:
    """Which of many predicates cover a case.

    Most begin alike and fall at one of a few features, and they are asked of each case that is
    drawn: what several ask is asked once, what the most ask first.
    """

    def __init__(self, predicates: Mapping[str, Predicate]) -> None:
        self._predicates = predicates
        shared = Counter(asked for one in predicates.values() for asked in one.case.items())
        self._root = _Node()
        for name, one in predicates.items():
            node = self._root
            for asked in sorted(one.case.items(), key=lambda asked: (-shared[asked], asked)):
                node = node.further.setdefault(asked, _Node())
            node.whole.append(name)

    def covering(self, runs: Sequence[Anatomy]) -> tuple[str, ...]:
        """Names of the predicates that cover one of these, in the order in which they came."""
        found = {name for a in runs for name in self._passing(self._root, a)}
        return tuple(name for name in self._predicates if name in found)

    def _passing(self, node: _Node, a: Anatomy) -> Iterator[str]:
        for name in node.whole:
            if self._predicates[name].meets(a):
                yield name
        told = case_features(a)
        for (feature, values), further in node.further.items():
            if told.get(feature) in values:
                yield from self._passing(further, a)

"""Which values of the options came together in the cases of a run, and how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import get_args

import msgspec

from fsdpfuzz.case import FEATURES
from fsdpfuzz.case.dimension import Group

MAX_VALUES = 16
"""Different values that are told apart per option; the rest counts as `OTHER`."""
OTHER = "other"
AT_ONCE = 4096
"""So many cases are counted in one go."""

GROUPS: dict[str, tuple[str, ...]] = {
    group: tuple(name for name, feature in FEATURES.items() if feature.group == group)
    for group in get_args(Group)
}
"""Options by the group that they are shown in."""


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """An option with one of its values, and how many cases took it."""

    option: str
    value: str
    count: int = 0

    def __str__(self) -> str:
        return f"{self.option}={self.value}"


class BlindSpot(msgspec.Struct, frozen=True, kw_only=True):
    """Two values that many cases took and none took together.

    ``expected`` is how many would have, had the two been drawn independently.
    """

    first: Value
    second: Value
    expected: float


class PairTable(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The counts of a run as data: JSON in, JSON out.

    ``pairs`` maps positions in ``values``, the smaller one first, to the number of cases;
    pairs that never came together are left out.
    """

    cases: int
    values: tuple[Value, ...]
    pairs: dict[str, int]
    missing: tuple[Value, ...] = ()
    """Values that no case took."""

    def count(self, first: int, second: int) -> int:
        """How many cases took both values, given by position."""
        low, high = sorted((first, second))
        return self.values[low].count if low == high else self.pairs.get(f"{low},{high}", 0)

    def grid(self) -> Grid:
        """All counts at once."""
        return self._grid

    # A report asks for it several times, of a hundred thousand pairs.
    @cached_property
    def _grid(self) -> Grid:
        size = len(self.values)
        counts = [[0] * size for _ in range(size)]
        for key, count in self.pairs.items():
            low, _, high = key.partition(",")
            i, j = int(low), int(high)
            counts[i][j] = counts[j][i] = count
        for i, value in enumerate(self.values):
            counts[i][i] = value.count
        return Grid(self.values, counts, _possible(self.values, counts))

    @property
    def met(self) -> int:
        """Number of different pairs that were exercised."""
        return len(self.pairs)

    @cached_property
    def reachable(self) -> int:
        """Number of different pairs of values, each taken by itself, that can come together."""
        return sum(1 for _ in self.grid().possible_pairs())

    def blind_spots(self, most: int) -> list[BlindSpot]:
        """The pairs never exercised whose values were the most common, worst first."""
        found = []
        grid = self.grid()
        for i, j in grid.possible_pairs():
            if not grid.counts[i][j]:
                first, second = self.values[i], self.values[j]
                expected = first.count * second.count / max(self.cases, 1)
                found.append(BlindSpot(first=first, second=second, expected=expected))
        found.sort(key=lambda spot: (-spot.expected, str(spot.first), str(spot.second)))
        return found[:most]


@dataclass(frozen=True, slots=True)
class Grid:
    """How many cases took two values, by the positions of both, either one first."""

    values: tuple[Value, ...]
    counts: list[list[int]]
    together: list[bytearray]
    """1 where a case can take both values."""

    def possible(self, first: int, second: int) -> bool:
        """Whether a case can take both values, given by position."""
        return bool(self.together[first][second])

    def possible_pairs(self) -> Iterator[tuple[int, int]]:
        """All pairs of positions whose values can come together, the smaller one first."""
        for i, row in enumerate(self.together):
            yield from ((i, j) for j in range(i + 1, len(row)) if row[j])


# A table has a hundred thousand of them, and a run has many tables.
def _possible(values: tuple[Value, ...], counts: list[list[int]]) -> list[bytearray]:
    found = [bytearray(len(values)) for _ in values]
    for i, a in enumerate(values):
        row, met = found[i], counts[i]
        for j in range(i + 1, len(values)):
            b = values[j]
            if a.option != b.option and (
                met[j] or not _exclusive(a.option, a.value, b.option, b.value)
            ):
                row[j] = found[j][i] = 1
    return found


class PairCounts:
    """Counts pairs of option values. Its memory is bounded, however many cases come."""

    def __init__(self) -> None:
        self._cases = 0
        self._values: dict[str, dict[str, int]] = {name: {} for name in FEATURES}
        self._names: list[tuple[str, str]] = []
        self._counts: Counter[int] = Counter()
        self._pairs: Counter[tuple[int, int]] = Counter()
        # A case has thousands of pairs: to count them one by one takes as long as to draw it.
        self._took: list[int] = []
        """Of each value the cases that took it and are not counted yet, a bit each."""
        self._waiting = 0

    def add(self, features: Mapping[str, str]) -> None:
        """Counts one case, given by `case.features`."""
        self._cases += 1
        bit = 1 << self._waiting
        for option, value in features.items():
            self._took[self._id(option, value)] |= bit
        self._waiting += 1
        if self._waiting == AT_ONCE:
            self._count()

    def _count(self) -> None:
        taken = [(i, took) for i, took in enumerate(self._took) if took]
        for n, (i, took) in enumerate(taken):
            self._counts[i] += took.bit_count()
            for j, other in taken[n + 1 :]:
                if both := took & other:
                    self._pairs[i, j] += both.bit_count()
        self._took = [0] * len(self._took)
        self._waiting = 0

    def table(self) -> PairTable:
        """The counts so far, options and values in a fixed order."""
        self._count()
        order = sorted(range(len(self._names)), key=lambda i: _rank(*self._names[i]))
        position = {old: new for new, old in enumerate(order)}
        pairs = {}
        for (a, b), count in self._pairs.items():
            low, high = sorted((position[a], position[b]))
            pairs[low, high] = count
        taken = set(self._names)
        apis = self._values["api"]
        return PairTable(
            cases=self._cases,
            values=tuple(
                Value(option=name, value=value, count=self._counts[old])
                for old in order
                for name, value in (self._names[old],)
            ),
            pairs={f"{low},{high}": pairs[low, high] for low, high in sorted(pairs)},
            missing=tuple(
                Value(option=name, value=value)
                for name, feature in FEATURES.items()
                if not apis or any(api in feature.apis for api in apis)
                for value in feature.values
                if (name, value) not in taken
            ),
        )

    def _id(self, option: str, value: str) -> int:
        values = self._values[option]
        if value not in values and len(values) >= MAX_VALUES:
            value = OTHER
        known = values.get(value)
        if known is None:
            known = values[value] = len(self._names)
            self._names.append((option, value))
            self._took.append(0)
        return known


def in_order(values: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Options with a value of each, in the order in which tables have them."""
    return sorted(values, key=lambda value: _rank(*value))


def group_of(option: str) -> str:
    """The group that an option is shown in."""
    return FEATURES[option].group


# The same for each report of a run, of which there are many.
@cache
def _exclusive(one: str, its: str, other: str, others: str) -> bool:
    """Whether the meaning of two values rules out that a case takes both.

    Also where the two leave a third option no value: what needs an optimizer's state, which
    needs steps, is apart from no optimizer. An option without any value beside one of them alone
    is just not taken.
    """
    first, second = _ruled_out(one, its), _ruled_out(other, others)
    # Either way: a value that its feature does not list is ruled out by no other, but may rule out.
    if others in first.get(other, ()) or its in second.get(one, ()):
        return True
    for name in first.keys() & second.keys():
        if name in (one, other):
            continue
        lost = first[name] | second[name]
        if (
            lost >= _values(name)
            and lost not in (first[name], second[name])
            and (_apis(one, its) & _apis(other, others)).issubset(FEATURES[name].apis)
        ):
            return True
    return False


@cache
def _ruled_out(option: str, value: str) -> dict[str, frozenset[str]]:
    """The values of each other option that one rules out."""
    apis, excluded = _apis(option, value), FEATURES[option].excludes.get(value, {})
    found = {}
    for name, feature in FEATURES.items():
        own = excluded.get(name, ())
        apart = frozenset(
            other
            for other in feature.values
            if other in own
            or value in feature.excludes.get(other, {}).get(option, ())
            or apis.isdisjoint(_apis(name, other))
        )
        if apart and name != option:
            found[name] = apart
    return found


@cache
def _values(option: str) -> frozenset[str]:
    return frozenset(FEATURES[option].values)


@cache
def _apis(option: str, value: str) -> frozenset[str]:
    """The APIs under which a value can be taken."""
    if option == "api":
        return frozenset((value,))
    feature = FEATURES[option]
    excluded = feature.excludes.get(value, {}).get("api", ())
    return frozenset(api for api in feature.apis if api not in excluded)


def _rank(option: str, value: str) -> tuple[int, int, int, str]:
    group = group_of(option)
    values = FEATURES[option].values
    return (
        list(GROUPS).index(group),
        GROUPS[group].index(option),
        values.index(value) if value in values else len(values),
        value,
    )

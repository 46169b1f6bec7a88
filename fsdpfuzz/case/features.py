"""A case in short texts: which value each option takes, in it, in a unit, for a parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from fsdpfuzz.case.anatomy import Anatomy, anatomy
from fsdpfuzz.case.dimension import Dimension, Feature, Rejection
from fsdpfuzz.case.dimensions import DIMENSIONS
from fsdpfuzz.case.spec import CaseSpec
from fsdpfuzz.errors import ContractError


def _all(kind: str) -> dict[str, Feature]:
    found: dict[str, Feature] = {}
    for dimension in DIMENSIONS:
        for name, feature in getattr(dimension, kind).items():
            if name in found:
                raise ContractError(f"two dimensions have a feature {name!r}")
            found[name] = feature
    return found


FEATURES = _all("features")
"""Every feature of a case. Those of the other API are left out of a case's."""
UNIT_FEATURES = _all("unit_features")
"""Every feature of a unit."""
PARAMETER_FEATURES = _all("parameter_features")
"""Every feature of a parameter."""


def _rejections() -> dict[str, Rejection]:
    found: dict[str, Rejection] = {}
    for dimension in DIMENSIONS:
        for rejection in dimension.rejections:
            if rejection.name in found:
                raise ContractError(f"two rejections are called {rejection.name!r}")
            found[rejection.name] = rejection
    return found


REJECTIONS = _rejections()
"""All documented refusals by name; names begin with the API."""


def features(case: CaseSpec) -> dict[str, str]:
    """Name and value of each feature of ``case``."""
    return dict(case_features(anatomy(case)))


def case_features(a: Anatomy) -> Mapping[str, str]:
    """Name and value of each feature of the case."""
    return _told(a, "case", "", lambda d: d.values(a))


def unit_features(a: Anatomy, path: str) -> Mapping[str, str]:
    """Name and value of each feature of the unit at ``path``."""
    return _told(a, "unit", path, lambda d: d.unit_values(a, path))


def parameter_features(a: Anatomy, fqn: str) -> Mapping[str, str]:
    """Name and value of each feature of the parameter."""
    return _told(a, "parameter", fqn, lambda d: d.parameter_values(a, fqn))


# A program may wrap its model anew; FSDP refuses the later plan just as it does the first.
def foreseen_rejections(a: Anatomy) -> tuple[Rejection, ...]:
    """The documented refusals that a case asks for; empty for a case that must run."""
    plans = a.under_each_plan
    return tuple(
        rejection for rejection in REJECTIONS.values() if any(rejection.asked(b) for b in plans)
    )


NEWER = {name: d.name for d in DIMENSIONS for name in d.newer}
"""What not every supported torch offers, with the dimension that needs it; see `Dimension`."""


def needs_of_torch(a: Anatomy) -> tuple[str, ...]:
    """What of `NEWER` a case goes through."""
    plans = a.under_each_plan
    return tuple(
        name for d in DIMENSIONS if d.newer and any(d.asked(b) for b in plans) for name in d.newer
    )


def needs_gpu(a: Anatomy) -> str:
    """What of a case cannot run on CPUs alone, in words; empty if all can."""
    plans = a.under_each_plan
    return next((words for d in DIMENSIONS for b in plans if (words := d.needs_gpu(b))), "")


def needs_gloo(a: Anatomy) -> str:
    """What of a case NCCL cannot run, in words; empty if it can run all."""
    plans = a.under_each_plan
    return next((words for d in DIMENSIONS for b in plans if (words := d.needs_gloo(b))), "")


class _Told(Mapping[str, str]):
    """The features of one thing, each dimension's worked out when one of them is first asked for.

    A known defect that does not cover a case mostly differs in the first few features, and all
    known defects are asked of each case that is drawn.
    """

    __slots__ = ("_dimensions", "_found", "_values")

    def __init__(
        self,
        dimensions: Mapping[str, Dimension],
        values: Callable[[Dimension], Iterable[tuple[str, str]]],
    ) -> None:
        self._dimensions = dimensions
        self._values = values
        self._found: dict[Dimension, dict[str, str]] = {}

    def __getitem__(self, name: str) -> str:
        return self._of(self._dimensions[name])[name]

    def __iter__(self) -> Iterator[str]:
        # Of those, too, that have declared none: what they tell all the same is refused.
        for dimension in DIMENSIONS:
            yield from self._of(dimension)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _of(self, dimension: Dimension) -> dict[str, str]:
        found = self._found.get(dimension)
        if found is None:
            try:
                found = self._found[dimension] = dict(self._values(dimension))
            except KeyError as error:
                # Which `Mapping.get` takes for a feature that nobody told.
                raise ContractError(f"features of {dimension.name}: {error!r}") from error
            for name in found:
                if self._dimensions.get(name) is not dimension:
                    raise ContractError(f"{name!r} is a feature that no dimension has declared")
        return found


def _owners(kind: str) -> Mapping[str, Dimension]:
    return {name: d for d in DIMENSIONS for name in getattr(d, kind)}


_DECLARED = {
    "case": _owners("features"),
    "unit": _owners("unit_features"),
    "parameter": _owners("parameter_features"),
}


def _told(
    a: Anatomy,
    kind: str,
    name: str,
    values: Callable[[Dimension], Iterable[tuple[str, str]]],
) -> Mapping[str, str]:
    told = a.told.get((kind, name))
    if told is None:
        told = a.told[kind, name] = _Told(_DECLARED[kind], values)
    return told

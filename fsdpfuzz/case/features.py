"""A case in short texts: which value each option takes, in it, in a unit, for a parameter."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

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


def foreseen_rejections(a: Anatomy) -> tuple[Rejection, ...]:
    """The documented refusals that a case asks for; empty for a case that must run."""
    plans = _plans(a)
    return tuple(
        rejection for rejection in REJECTIONS.values() if any(rejection.asked(b) for b in plans)
    )


NEWER = {name: d.name for d in DIMENSIONS for name in d.newer}
"""What not every supported torch offers, with the dimension that needs it; see `Dimension`."""


def needs_of_torch(a: Anatomy) -> tuple[str, ...]:
    """What of `NEWER` a case goes through."""
    plans = _plans(a)
    return tuple(
        name for d in DIMENSIONS if d.newer and any(d.asked(b) for b in plans) for name in d.newer
    )


def needs_gpu(a: Anatomy) -> str:
    """What of a case cannot run on CPUs alone, in words; empty if all can."""
    plans = _plans(a)
    return next((words for d in DIMENSIONS for b in plans if (words := d.needs_gpu(b))), "")


def needs_gloo(a: Anatomy) -> str:
    """What of a case NCCL cannot run, in words; empty if it can run all."""
    plans = _plans(a)
    return next((words for d in DIMENSIONS for b in plans if (words := d.needs_gloo(b))), "")


def _plans(a: Anatomy) -> Collection[Anatomy]:
    """The anatomy under each plan that the program comes to."""
    return {id(b): b for b in (a, *(a.at(i) for i in range(len(a.case.program))))}.values()


_DECLARED = {"case": FEATURES, "unit": UNIT_FEATURES, "parameter": PARAMETER_FEATURES}


def _told(
    a: Anatomy,
    kind: str,
    name: str,
    values: Callable[[Dimension], Iterable[tuple[str, str]]],
) -> Mapping[str, str]:
    told = a.told.get((kind, name))
    if told is None:
        told = dict(pair for dimension in DIMENSIONS for pair in values(dimension))
        for unknown in told.keys() - _DECLARED[kind].keys():
            raise ContractError(f"{unknown!r} is a feature that no dimension has declared")
        a.told[kind, name] = told
    return told

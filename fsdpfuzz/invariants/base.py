"""What an invariant is, and how far from the reference still counts as rounding."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import ClassVar

from packaging.version import InvalidVersion, Version

from fsdpfuzz.case import Anatomy, anatomy, variants
from fsdpfuzz.case.names import parameter_in
from fsdpfuzz.expect import DIVERGED, FLOAT32_EPS, beyond_baseline, measured, rounding
from fsdpfuzz.invariants.evidence import Evidence
from fsdpfuzz.observations import Comparison, Observation, RankReport, Subject
from fsdpfuzz.verdict import Finding


class Invariant(ABC):
    """A named rule over the observation of a case."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """What must hold."""
    wrong: ClassVar[str]
    """What FSDP does where it does not hold: ``computes a wrong gradient``."""
    follows: ClassVar[bool] = False
    """Whether it is broken, too, where an operation before has broken another of this kind."""
    costs: ClassVar[bool] = False
    """Whether what breaks it costs time or memory and makes, by itself, no value wrong."""

    def foresee(self, a: Anatomy, torch: str) -> None:
        """Works out what `check` will compare with, on that release of torch, while ranks train.

        What takes no time is left to `check`.
        """
        return

    @abstractmethod
    def check(self, a: Anatomy, observation: Observation) -> Iterator[Finding]:
        """A finding for each way in which it is broken."""

    @abstractmethod
    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """How a script shows the finding; ``a`` is of the variant that shows it."""


_OWN_DTYPE = Version("2.15")
"""From this release on fsdp2 reduces in the parameters' own dtype unless told another."""


def is_from(release: Version, torch: str, *, unknown: bool = True) -> bool:
    """Whether ``torch`` is that release or a later one; ``unknown`` if nobody knows."""
    try:
        # The base version: a nightly build of a release counts as that release.
        return Version(Version(torch).base_version) >= release
    except InvalidVersion:
        return unknown


def reduces_in_own(torch: str) -> bool:
    """Whether fsdp2 reduces in the parameters' own dtype, and not in that it computes in."""
    return is_from(_OWN_DTYPE, torch, unknown=False)


def tolerance(comparison: Comparison) -> float:
    """The largest deviation from float64 that counts as rounding; 0.0 for exact contracts."""
    if comparison.exact:
        return 0.0
    sizes = (comparison.scale, comparison.floor, comparison.eps, comparison.reduced)
    lost, lost_in = comparison.baseline, comparison.baseline_eps or FLOAT32_EPS
    if comparison.coarse is not None:
        return measured(*sizes, comparison.coarse, lost, lost_in) + beyond_baseline(lost, 0.0)
    return rounding(*sizes) + beyond_baseline(lost, comparison.eps, lost_in)


def broken(comparison: Comparison, slack: float = 0.0) -> bool:
    """Whether the deviation is more than rounding, and by more than ``slack``.

    Where training without FSDP left the range of its dtype too, nothing can be said.
    """
    # Before it is asked whether FSDP's value is finite: the reference's was not either.
    if max(comparison.baseline, comparison.coarse or 0.0) >= DIVERGED:
        return False
    if not comparison.finite:
        return True
    return comparison.error > tolerance(comparison) + slack


@lru_cache(maxsize=8)
def runs_of(a: Anatomy) -> Mapping[str, Anatomy]:
    """The anatomy of the case and of each variant as it is run, by the name of its subject."""
    return {name: anatomy(case) for name, case in variants(a.case).items()}


def subjects(a: Anatomy, observation: Observation) -> Iterator[tuple[RankReport, Subject, Anatomy]]:
    """Every subject of every rank that reported, with the anatomy of what it ran."""
    runs = runs_of(a)
    for report in observation.reports:
        if report is not None:
            for subject in report.subjects:
                yield report, subject, runs[subject.name]


def variant_name(subject: Subject) -> str:
    """The variant's name; empty for the case itself."""
    return "" if subject.name == "case" else subject.name


def operation(a: Anatomy, op: int) -> str:
    """The kind of an operation by its index; empty where there is none."""
    return a.case.program[op].kind() if 0 <= op < len(a.case.program) else ""


def left_behind(
    invariant: Invariant,
    a: Anatomy,
    subject: Subject,
    op: int,
    unit: str,
    rank: int,
    observed: str,
    expected: str,
) -> Finding:
    """A leak that an operation leaves in a unit."""
    return Finding(
        invariant=invariant.name,
        symptom="leak",
        api=a.api,
        variant=variant_name(subject),
        op=op,
        operation=operation(a, op),
        unit=unit,
        quantity="units",
        ranks=(rank,),
        world_size=a.case.world_size,
        observed=observed,
        expected=expected,
    )


def unit_of_parameter(a: Anatomy, name: str) -> str | None:
    """The unit that manages the parameter that a name means; None for any other name."""
    return a.owners.get(parameter_in(name))

"""What an invariant is, and how far from the reference still counts as rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fsdpfuzz.observations import Comparison, Observation, RankReport, Subject
from fsdpfuzz.spec import CaseSpec
from fsdpfuzz.verdict import Finding

Check = Callable[[CaseSpec, Observation], Iterator[Finding]]

BASELINE_FACTOR = 16.0
"""FSDP may be this many times as far from float64 as DDP was on the same tensor."""
COARSE_FACTOR = 64.0
"""The same where a coarser dtype takes part, as many times over as that is coarser: what DDP
lost in float32 tells how far terms cancel, if only by one draw of its rounding."""
FLOAT32_EPS = 2.0**-23
SCALE_FACTOR = 256.0
"""Rounding units of the tensor's own largest element that are always allowed."""
FLOOR_FACTOR = 32.0
"""Rounding units of the largest element of all tensors that are always allowed: sums in
which large terms cancel keep the rounding of those terms."""
FLOAT16_EPS = 2.0**-10
UNDERFLOW = 2.0**-18
"""Always allowed where float16 takes part: 64 of its smallest steps. What is smaller than one
of them is lost on the way, whatever is computed from it."""
DIVERGED = 1e300
"""A baseline from which on DDP's own values were not finite."""


@dataclass(frozen=True, slots=True)
class Invariant:
    """A named rule over the observation of a case."""

    name: str
    summary: str
    check: Check


def tolerance(comparison: Comparison) -> float:
    """The largest deviation from float64 that counts as rounding; 0.0 for exact contracts."""
    if comparison.exact:
        return 0.0
    growth = max(1.0, math.sqrt(comparison.reduced))
    rounding = SCALE_FACTOR * comparison.scale + FLOOR_FACTOR * comparison.floor
    bound = BASELINE_FACTOR * comparison.baseline + comparison.eps * growth * rounding
    if comparison.eps > FLOAT32_EPS:
        bound += COARSE_FACTOR * comparison.baseline * comparison.eps / FLOAT32_EPS
    if comparison.eps == FLOAT16_EPS:
        bound += UNDERFLOW * growth
    return bound


def broken(comparison: Comparison) -> bool:
    """Whether the deviation is more than rounding.

    Where DDP left the range of its dtype too, training diverged and nothing can be said.
    """
    if comparison.baseline >= DIVERGED:
        return False
    if not comparison.finite:
        return True
    return comparison.error > tolerance(comparison)


def subjects(observation: Observation) -> Iterator[tuple[RankReport, Subject]]:
    """Every subject of every rank that reported."""
    for report in observation.reports:
        if report is not None:
            for subject in report.subjects:
                yield report, subject


def label(subject: Subject, case: CaseSpec) -> str:
    """The API, and the twin if it is one, for a finding's key."""
    return case.api if subject.name == "case" else f"{case.api}:{subject.name}"

"""What a case's observation amounts to: pass, rejected, vacuous or a finding."""

from __future__ import annotations

from functools import cache
from typing import Literal

import msgspec

Symptom = Literal[
    "mismatch",
    "crash",
    "hang",
    "rank_death",
    "rank_divergence",
    "unclear_error",
    "leak",
    "vacuous",
]
Status = Literal["passed", "rejected", "vacuous", "finding"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One broken invariant. Two findings with the same key count as the same defect."""

    invariant: str
    symptom: Symptom
    where: str
    """Short and stable under shrinking: the API and what kind of deviation or frame it is."""
    message: str
    """``observed X, but should be Y [what(where)]``, for a person."""
    observed: str = ""
    expected: str = ""
    op: int = -1
    """The operation of the program at which it shows; -1 where that has no meaning."""

    @property
    def key(self) -> str:
        """``invariant/symptom/where``, by which duplicates are recognised."""
        return f"{self.invariant}/{self.symptom}/{self.where}"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The judgement of one case. ``findings`` is empty unless ``status`` is ``finding``."""

    status: Status
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    """Why the case was rejected or is vacuous."""


class FindingError(AssertionError):
    """Raised into Hypothesis for a finding; each key has a subclass of its own.

    Hypothesis tells failures apart by exception type and place, so a finding cannot shrink
    into a different one and several findings of one run shrink separately.
    """

    finding: Finding

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        super().__init__(f"{finding.key}\n{finding.message}")


@cache
def error_type(key: str) -> type[FindingError]:
    """The exception type of a finding's key; the same object at every call."""
    name = "".join(c if c.isalnum() else "_" for c in key)
    return type(f"Finding_{name}", (FindingError,), {"__doc__": key, "__module__": __name__})

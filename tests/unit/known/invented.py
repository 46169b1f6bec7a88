"""Findings of defects that nobody has: one thing changed in what a known defect shows."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from fsdpfuzz.case import CaseSpec, anatomy
from fsdpfuzz.invariants import REGISTRY
from fsdpfuzz.known import Defect
from fsdpfuzz.verdict import Failure, Finding

replace = msgspec.structs.replace

ENDS = frozenset({"no_crash", "no_rank_death", "no_hang", "ranks_agree", "equal_rejection"})
"""Invariants whose findings are about an exception, or the end of a process."""
OF_PARAMETERS = frozenset(
    {
        "grad_parity",
        "param_parity",
        "state_dict_keys",
        "state_dict_values",
        "state_dict_round_trip",
        "twins_agree",
    }
)
OF_UNITS = frozenset({"resharded_after_backward", "reshard_count"})


def invented(defect: Defect, case: CaseSpec) -> Iterator[tuple[str, Finding]]:
    """What was changed, and the finding."""
    for finding in (defect.finding, *_otherwise(defect)):
        yield from _elsewhere(defect, case, finding)
        yield from _failing(defect, finding)
    yield from _other_invariants(defect, case)


def _otherwise(defect: Defect) -> Iterator[Finding]:
    """The same in the other ways that the entry says it shows."""
    base = replace(defect.finding, failure=None, observed="0.5", expected="0.25")
    for shown in defect.shows:
        for invariant in shown.invariant:
            if invariant == defect.finding.invariant or invariant in ENDS:
                continue
            yield replace(
                base,
                invariant=invariant,
                symptom="mismatch",
                kind=next(iter(shown.kind), ""),
                detail=next(iter(shown.detail), "other"),
            )


def _elsewhere(defect: Defect, case: CaseSpec, finding: Finding) -> Iterator[tuple[str, Finding]]:
    """At a parameter or unit that the entry does not mean, and much larger."""
    a = anatomy(case)
    large = replace(finding, observed="12345.0")
    if finding.invariant in OF_PARAMETERS:
        for fqn in ("no.such.parameter", *a.by_fqn):
            if fqn not in a.by_fqn or not defect.when.has_parameter(a, fqn):
                yield f"parameter {fqn}", replace(large, name=fqn, unit=a.owners.get(fqn))
    if finding.invariant in OF_UNITS:
        for path in ("no.such.unit", *a.units):
            if path not in a.units or not defect.when.has_unit(a, path):
                yield f"unit {path!r}", replace(large, unit=path)
    if finding.invariant in OF_UNITS | OF_PARAMETERS:
        if finding.invariant == "grad_parity":
            yield "an input", replace(large, quantity="input_grad", name="inputs[0]", unit=None)
        yield "nothing named", replace(large, unit=None, name="")


def _failing(defect: Defect, finding: Finding) -> Iterator[tuple[str, Finding]]:
    """Another exception, from elsewhere, with other words, or another end of the process."""
    spoken = [shown for shown in defect.shows if finding.invariant in shown.invariant]
    if all(shown.operation for shown in spoken):
        yield "operation", replace(finding, op=-1, operation="zero_grad")
    failure = finding.failure
    if failure is None:
        return
    changes: dict[str, Failure] = {}
    if failure.type:
        another = "OverflowError" if failure.type == "ZeroDivisionError" else "ZeroDivisionError"
        changes["type"] = replace(failure, type=another)
        changes["text"] = replace(failure, text="the size of it is wrong, dtype and shape too")
        # An entry that means a bare assertion says so, in a pattern of its own.
        if all(shown.text != "^$" for shown in spoken):
            changes["no text"] = replace(failure, text="")
        if all(shown.place for shown in spoken):
            changes["place"] = replace(failure, place="torch/optim/sgd.py:step")
        changes["end"] = Failure(stage=failure.stage, exitcode=-6)
        changes["segmentation fault"] = Failure(stage=failure.stage, exitcode=-11)
    else:
        changes["exit code"] = replace(failure, exitcode=1)
        changes["exception"] = Failure(type="RuntimeError", text="", stage=failure.stage)
    for words, other in changes.items():
        yield words, replace(finding, failure=other)


def _other_invariants(defect: Defect, case: CaseSpec) -> Iterator[tuple[str, Finding]]:
    """Each invariant that the entry does not speak of, at the very same place."""
    spoken = {name for shown in defect.shows for name in shown.invariant}
    for name in REGISTRY.keys() - spoken:
        yield name, replace(defect.finding, invariant=name)
        if name in ENDS:
            ended = Failure(stage="case:backward[1]", exitcode=-11)
            death = replace(defect.finding, invariant=name, symptom="rank_death", failure=ended)
            yield f"{name}, segmentation fault", death

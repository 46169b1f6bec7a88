"""Rules about state dicts: the plain model's keys and values, and a load that restores them."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpfuzz.invariants._base import Invariant, broken, label, subjects, tolerance
from fsdpfuzz.observations import Comparison, Observation, Quantity, Subject
from fsdpfuzz.spec import CaseSpec
from fsdpfuzz.verdict import Finding


def _keys(case: CaseSpec, observation: Observation) -> Iterator[Finding]:
    told = set()
    for report, subject in subjects(observation):
        for names, kind, what in (
            (subject.state_keys_missing, "missing", "lacks"),
            (subject.state_keys_unexpected, "unexpected", "has the odd"),
            (subject.state_misshapen, "misshapen", "has in another form"),
        ):
            where = f"{label(subject, case)}:{kind}"
            if names and where not in told:
                told.add(where)
                yield Finding(
                    invariant="state_dict_keys",
                    symptom="mismatch",
                    where=where,
                    message=f"the state dict {what} {names[0]!r}, but should be laid out as the "
                    f"plain model's is [rank {report.rank}; {len(names)} entries in all]",
                    observed=f"{kind} {names[0]}",
                    expected="the plain model's keys, shapes and dtypes",
                )


def _values(case: CaseSpec, observation: Observation) -> Iterator[Finding]:
    return _deviations(
        case,
        observation,
        name="state_dict_values",
        quantity="state_dict",
        what="in the state dict",
    )


def _round_trip(case: CaseSpec, observation: Observation) -> Iterator[Finding]:
    return _deviations(
        case,
        observation,
        name="state_dict_round_trip",
        quantity="reloaded",
        what="after the load",
    )


def _deviations(
    case: CaseSpec, observation: Observation, *, name: str, quantity: Quantity, what: str
) -> Iterator[Finding]:
    """The largest deviation of the earliest state dict of each subject that has one."""
    told = set()
    for report, subject in subjects(observation):
        worst = _worst(subject, quantity)
        where = f"{label(subject, case)}:{_kind(worst)}" if worst else ""
        if worst is None or where in told:
            continue
        told.add(where)
        yield Finding(
            invariant=name,
            symptom="mismatch",
            where=where,
            message=f"{worst.name}={worst.observed:.9g} {what}, but should be "
            f"{worst.expected:.9g} within {tolerance(worst):.3g} "
            f"[rank {report.rank}, program[{worst.op}]]",
            observed=repr(worst.observed),
            expected=repr(worst.expected),
            op=worst.op,
        )


def _worst(subject: Subject, quantity: Quantity) -> Comparison | None:
    found = [c for c in subject.comparisons if c.quantity == quantity and broken(c)]
    return max(found, key=lambda c: (-c.op, c.error), default=None)


def _kind(comparison: Comparison) -> str:
    """What sort of deviation it is; a load that did nothing leaves zeros, or -1 for zeros."""
    if comparison.missing:
        return f"{comparison.missing}-missing"
    if not comparison.finite:
        return "not-finite"
    return "zero" if comparison.observed == 0.0 else "other"


STATE_DICT = (
    Invariant(
        "state_dict_keys", "a state dict has the plain model's keys, shapes and dtypes", _keys
    ),
    Invariant("state_dict_values", "a state dict holds the reference's values", _values),
    Invariant(
        "state_dict_round_trip",
        "loaded into a model that differs everywhere, it restores every element",
        _round_trip,
    ),
)

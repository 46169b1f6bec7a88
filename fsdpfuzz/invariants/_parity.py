"""Parity with DDP: losses, outputs, gradients, parameters and buffers."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpfuzz.invariants._base import Invariant, broken, label, subjects, tolerance
from fsdpfuzz.observations import Comparison, Observation, Quantity
from fsdpfuzz.spec import CaseSpec, parting
from fsdpfuzz.verdict import Finding

_RATIO_SLACK = 0.01


def _parity(name: str, quantities: tuple[Quantity, ...], summary: str) -> Invariant:
    def check(case: CaseSpec, observation: Observation) -> Iterator[Finding]:
        worst: dict[str, tuple[int, Comparison]] = {}
        until = parting(case)
        for report, subject in subjects(observation):
            first = _first_broken(subject.comparisons, quantities, until)
            if first is None:
                continue
            where = f"{label(subject, case)}:{kind(first, case.world_size)}"
            if where not in worst or first.error > worst[where][1].error:
                worst[where] = (report.rank, first)
        for where, (rank, comparison) in worst.items():
            yield _finding(name, where, rank, comparison)

    return Invariant(name, summary, check)


def _first_broken(
    comparisons: tuple[Comparison, ...], quantities: tuple[Quantity, ...], until: int | None
) -> Comparison | None:
    """The largest deviation of the earliest operation at which there is any.

    What comes later follows from it: a wrong gradient makes wrong parameters. From ``until``
    on ranks take different paths, and FSDP promises nothing of the results.
    """
    found = [
        c
        for c in comparisons
        if c.quantity in quantities and (until is None or c.op < until) and broken(c)
    ]
    return max(found, key=lambda c: (-c.op, c.error), default=None)


def kind(comparison: Comparison, world_size: int) -> str:
    """What sort of deviation it is, stable while the case shrinks."""
    if comparison.missing == "shape":
        return "shape"
    if comparison.missing:
        return f"{comparison.missing}-missing"
    if not comparison.finite:
        return "not-finite"
    observed, expected = comparison.observed, comparison.expected
    if observed == 0.0:
        return "zero"
    if expected != 0.0:
        for ratio, text in ((float(world_size), "times-ranks"), (1.0 / world_size, "over-ranks")):
            if abs(observed / expected / ratio - 1.0) < _RATIO_SLACK:
                return text
    return "other"


def _finding(name: str, where: str, rank: int, comparison: Comparison) -> Finding:
    bound = tolerance(comparison)
    return Finding(
        invariant=name,
        symptom="mismatch",
        where=where,
        message=(
            f"{comparison.quantity}={comparison.observed:.9g}, but should be "
            f"{comparison.expected:.9g} within {bound:.3g} "
            f"[{comparison.name}, rank {rank}, program[{comparison.op}]; DDP is off by "
            f"{comparison.baseline:.3g}]"
        ),
        observed=repr(comparison.observed),
        expected=repr(comparison.expected),
        op=comparison.op,
    )


PARITY = (
    _parity("loss_parity", ("loss",), "every rank's loss equals that of the reference"),
    _parity("output_parity", ("output",), "outputs equal those of the reference"),
    _parity(
        "grad_parity",
        ("grad", "input_grad"),
        "this rank's part of each gradient equals the same part of the averaged gradient",
    ),
    _parity("param_parity", ("param",), "parameters equal those of the reference after each step"),
    _parity("buffer_parity", ("buffer",), "buffers equal those of the reference bit for bit"),
)

"""Where a finding of somebody's own model begins, from a further run that taps its modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from fsdpfuzz.case import CaseSpec, Imported, anatomy
from fsdpfuzz.observations import Departure, Observation, RankReport
from fsdpfuzz.own._target import permit
from fsdpfuzz.verdict import Finding
from fsdpfuzz.wire import Target

SHOWN = 4
"""Modules on the way to what is wrong that are named."""


class Tapping(Protocol):
    """Ranks that tap modules."""

    def run(self, case: CaseSpec, *, patience: bool = False) -> Observation:
        """What the ranks saw; with ``patience`` under the ceiling deadline."""

    def close(self) -> None:
        """Ends the ranks."""


def begins(
    case: CaseSpec,
    finding: Finding,
    target: Target | None,
    tapping: Callable[[int], Tapping] | None,
) -> tuple[str, ...]:
    """Lines on where it begins; empty for a model that was drawn, or if nobody can say.

    ``tapping`` makes so many ranks that tap modules, for the code of ``target``.
    """
    if not isinstance(case.model, Imported) or finding.symptom != "mismatch" or finding.op < 0:
        return ()
    if tapping is None:
        return ()
    permit(case, target)
    pool = tapping(case.world_size)
    try:
        # No deadline of other cases holds for a tapped one.
        observation = pool.run(case, patience=True)
    finally:
        pool.close()
    reports = [report for report in observation.reports if report is not None]
    return tuple(_lines(reports, case, finding)) if reports and observation.clean else ()


def _lines(reports: Sequence[RankReport], case: CaseSpec, finding: Finding) -> list[str]:
    first = min(
        (
            (report.departures[0].op, report.rank, report.departures)
            for report in reports
            if report.departures and report.departures[0].op <= finding.op
        ),
        default=None,
    )
    if first is None:
        return [_no_module(reports[0], case, finding)]
    _, rank, departures = first
    shown = [d for d in departures if d.op <= finding.op]
    begin, others = shown[0], _distinct(shown)[1:]
    lines = [
        f"begins at {_place(begin)}, on rank {rank}, {case.program[begin.op].words()} "
        f"program[{begin.op}]: off by {begin.error:.3g} of its size, of which {begin.allowed:.1g} "
        "may be rounding"
    ]
    way = [_place(other) for other in others[:SHOWN]]
    way += [f"{len(others) - SHOWN} more"] if len(others) > SHOWN else []
    way += [finding.name] if finding.name else []
    if way:
        lines.append(f"from there to {', '.join(way)}")
    return lines


def _no_module(report: RankReport, case: CaseSpec, finding: Finding) -> str:
    """What is left where modules agree: reduction of gradients, the optimizer, saving."""
    said = f"outputs and gradients of all modules agree ({report.tapped} tensors)"
    said += ": it begins after them"
    lost = next((path for path in report.lost if path), "")
    if "missing" in f"{finding.kind} {finding.detail}" and lost:
        return f"{said}, but with FSDP no gradient reaches {lost!r}, which has one without"
    a = anatomy(case)
    if finding.quantity == "grad" and finding.name in a.owners:
        owner = a.owners[finding.name]
        unit = "no unit" if owner is None else f"the unit {owner!r}" if owner else "the root's unit"
        return f"{said}, where the gradient of {finding.name} is made or reduced, in {unit}"
    return f"{said}, in {finding.operation or 'what follows'} program[{finding.op}]"


def _distinct(departures: Sequence[Departure]) -> list[Departure]:
    """One for each call of a module and what of it."""
    return list({(d.name, d.call, d.what): d for d in reversed(departures)}.values())[::-1]


def _place(d: Departure) -> str:
    name = repr(d.name) if d.name else "the model itself"
    what = "the output of" if d.what == "output" else "the gradient that reaches"
    return f"{what} {name} (call {d.call})"

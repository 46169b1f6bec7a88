"""Findings close to a known defect's own that it must not explain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from fsdpfuzz.case import Anatomy, CaseSpec, anatomy, as_document, decode
from fsdpfuzz.errors import ContractError
from fsdpfuzz.known.defect import Defect, MustNot
from fsdpfuzz.known.narrow import focus_of, run_of
from fsdpfuzz.known.trials import Trial
from fsdpfuzz.verdict import Failure, Finding

FEWEST, MOST = 2, 5
_NEIGHBOURS = 2

replace = msgspec.structs.replace


def other_findings(case: CaseSpec, defect: Defect, trials: Sequence[Trial]) -> tuple[MustNot, ...]:
    """The closest of them: on plainer cases, at another place, of another sort."""
    found = [
        other
        for other in (
            *_on_neighbours(defect, trials),
            *_elsewhere(anatomy(case), defect),
            *_of_another_sort(defect.finding),
        )
        if not defect.explains(_case_of(case, other), other.finding)
    ]
    if len(found) < FEWEST:
        raise ContractError("a proposed entry explains whatever is found beside its own")
    return tuple(found[:MOST])


def _case_of(case: CaseSpec, other: MustNot) -> CaseSpec:
    return decode(msgspec.json.encode(other.case)) if other.case else case


def _on_neighbours(defect: Defect, trials: Sequence[Trial]) -> Iterator[MustNot]:
    """The same finding where it does not show: in the nearest cases that are not covered."""
    finding = defect.finding
    wanted = [trial for trial in trials if trial.without and not defect.covers(trial.case)]
    # Those that lack an option before those of another size: words say why it is another finding.
    wanted.sort(key=lambda trial: not trial.words)
    given = 0
    for trial in wanted:
        a = run_of(trial.case, finding.variant)
        gone = finding.name and not finding.name.endswith("]") and finding.name not in a.by_fqn
        if gone or (finding.unit is not None and finding.unit not in a.options):
            continue
        without = f"without {trial.words}" if trial.words else "in a plainer case"
        yield MustNot(
            why=f"the same finding {without}", finding=finding, case=as_document(trial.case)
        )
        given += 1
        if given == _NEIGHBOURS:
            return


def _elsewhere(a: Anatomy, defect: Defect) -> Iterator[MustNot]:
    """The same finding at another parameter, or another unit, of the same case."""
    finding = defect.finding
    focus = focus_of(run_of(a.case, finding.variant), finding)
    if focus.parameter is not None:
        for fqn, owner in a.owners.items():
            if fqn != focus.parameter:
                yield MustNot(
                    why=f"the same finding of the parameter {fqn}",
                    finding=replace(finding, name=fqn, unit=owner),
                )
    elif focus.unit is not None:
        for path in a.units:
            if path != focus.unit:
                yield MustNot(
                    why=f"the same finding of the unit {path!r}",
                    finding=replace(finding, unit=path),
                )


def _of_another_sort(finding: Finding) -> Iterator[MustNot]:
    """An exception with other words, a segmentation fault, a wrong gradient, a hang."""
    stage = f"case:{finding.operation}[{finding.op}]"
    text = "The size of tensor a (3) must match the size of tensor b (4)"
    raised = Failure(type="RuntimeError", text=text, stage=stage)
    if finding.failure is not None and finding.failure.type:
        raised = replace(finding.failure, text=text)
    crash = Finding(
        invariant="no_crash",
        symptom="crash",
        api=finding.api,
        kind=f"{raised.type}@{raised.place}:{text}",
        op=finding.op,
        operation=finding.operation,
        ranks=tuple(range(finding.world_size)),
        world_size=finding.world_size,
        observed=raised.type,
        expected="no exception",
        failure=raised,
    )
    yield MustNot(why="an exception with other words at the same place", finding=crash)
    gradient = replace(
        crash,
        invariant="grad_parity",
        symptom="mismatch",
        kind="",
        detail="other",
        quantity="grad",
        name=finding.name,
        unit=finding.unit,
        observed="0.1",
        expected="0.2",
        allowed=1e-6,
        baseline=1e-8,
        failure=None,
    )
    yield MustNot(why="a wrong gradient in the same case", finding=gradient)
    death = replace(
        crash,
        invariant="no_rank_death",
        symptom="rank_death",
        kind=f"{finding.operation}:-11",
        observed="exit code -11",
        expected="a living rank",
        failure=Failure(stage=stage, exitcode=-11),
    )
    yield MustNot(why="a segmentation fault in the same case", finding=death)
    hang = replace(
        crash,
        invariant="no_hang",
        symptom="hang",
        kind=finding.operation,
        observed="no answer within 20.0 s",
        expected="an answer from every rank",
        failure=None,
    )
    yield MustNot(why="a hang in the same case", finding=hang)

"""Rules about the order in which ranks call units (fsdp1): an error, a warning, or neither."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpfuzz.invariants._base import Invariant, subjects
from fsdpfuzz.observations import Observation, Raised
from fsdpfuzz.spec import CaseSpec, order_error, order_warnings
from fsdpfuzz.verdict import Finding

ORDER_ERROR = "Forward order differs across ranks"
ORDER_WARNING = "Forward order differs from that of the first iteration on rank"


def order_refused(case: CaseSpec, observation: Observation) -> bool:
    """Whether every rank raised the error that differing first iterations call for."""
    op = order_error(case)
    raised = observation.raised()
    return (
        op is not None
        and len(raised) == observation.world_size
        and all(_tells_of_order(error, op) for _, error in raised)
    )


def _tells_of_order(error: Raised, op: int) -> bool:
    return (
        error.type == "RuntimeError"
        and error.message.startswith(ORDER_ERROR)
        and error.stage.endswith(f"forward[{op}]")
    )


def _error(case: CaseSpec, observation: Observation) -> Iterator[Finding]:
    op = order_error(case)
    if op is None or order_refused(case, observation):
        return
    told = [rank for rank, error in observation.raised() if _tells_of_order(error, op)]
    stuck = observation.hang is not None or bool(observation.deaths)
    kind = "hang" if stuck else "another-error" if observation.raised() else "silent"
    yield Finding(
        invariant="order_error",
        symptom="rank_divergence" if told else "mismatch",
        where=f"{case.api}:{'some-ranks' if told else kind}",
        message=f"ranks {told} of {observation.world_size} raised {ORDER_ERROR!r}, but all should "
        f"[forward program[{op}], where ranks call different units in the first iteration]",
        observed=f"{len(told)} ranks",
        expected=f"{observation.world_size} ranks",
        op=op,
    )


def _warning(case: CaseSpec, observation: Observation) -> Iterator[Finding]:
    due = order_warnings(case)
    if due is None:
        return
    for report, subject in subjects(observation):
        if subject.name != "case":
            continue
        texts = zip(subject.warning_ops, subject.warnings, strict=True)
        seen = [op for op, text in texts if text.startswith(f"{ORDER_WARNING} {report.rank}.")]
        deviation = due[report.rank]
        should = [] if deviation is None else [deviation.op] * deviation.units
        if seen == should:
            continue
        kind = "missing" if len(seen) < len(should) else "repeated" if should else "false"
        yield Finding(
            invariant="order_warning",
            symptom="mismatch",
            where=f"{case.api}:{kind}",
            message=f"rank {report.rank} warns of another order at the operations {seen}, but "
            f"should at {should} [debug level {case.debug_level}]",
            observed=str(seen),
            expected=str(should),
            op=(seen or should)[0],
        )
        return


ORDER = (
    Invariant(
        "order_error",
        "ranks that call different units in the first iteration all raise an error",
        _error,
    ),
    Invariant(
        "order_warning",
        "a rank that leaves its own order later warns once for each unit, and no other does",
        _warning,
    ),
)

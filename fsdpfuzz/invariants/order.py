"""Rules about the order in which ranks call units (fsdp1): an error, a warning, or neither."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpfuzz.case import Anatomy
from fsdpfuzz.case.recipe import Do, Value, Variable, call
from fsdpfuzz.expect import order_error, order_warnings, rank_in_warnings
from fsdpfuzz.invariants.base import Invariant, subjects
from fsdpfuzz.invariants.evidence import SEEN, Evidence, judged
from fsdpfuzz.invariants.hooks import by_rank
from fsdpfuzz.observations import Observation, Raised
from fsdpfuzz.verdict import Finding

# Both texts are those of ``_ExecOrderData._check_order`` in fsdp/_exec_order_utils.py.
ORDER_ERROR = "Forward order differs across ranks"
ORDER_WARNING = "Forward order differs from that of the first iteration on rank"


def order_refused(a: Anatomy, observation: Observation) -> bool:
    """Whether every rank raised the error that differing first iterations call for."""
    op = order_error(a)
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


class OrderError(Invariant):
    """The first iteration."""

    name = "order_error"
    summary = "ranks that call different units in the first iteration all raise an error"
    wrong = "lets ranks differ in their first order"

    def check(self, a: Anatomy, observation: Observation) -> Iterator[Finding]:
        """Where not every rank raises the error."""
        op = order_error(a)
        if op is None or order_refused(a, observation):
            return
        told = [rank for rank, error in observation.raised() if _tells_of_order(error, op)]
        stuck = observation.hang is not None or bool(observation.deaths)
        kind = "hang" if stuck else "another-error" if observation.raised() else "silent"
        yield Finding(
            invariant=self.name,
            symptom="rank_divergence" if told else "mismatch",
            api=a.api,
            kind="some-ranks" if told else kind,
            op=op,
            operation="forward",
            quantity="ranks that raise the error on the order",
            ranks=tuple(told),
            world_size=observation.world_size,
            observed=str(len(told)),
            expected=str(observation.world_size),
            note="there ranks call different units in the first iteration",
        )

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """Whether each rank raises that error."""
        return Evidence(manner="order_error", last=finding.op)


class OrderWarning(Invariant):
    """Later iterations."""

    name = "order_warning"
    summary = "a rank that leaves its own order later warns once for each unit, and no other does"
    wrong = "warns wrongly of another order"

    def check(self, a: Anatomy, observation: Observation) -> Iterator[Finding]:
        """The first rank that warns otherwise."""
        due = order_warnings(a)
        if due is None:
            return
        for report, subject, _ in subjects(a, observation):
            if subject.name != "case":
                continue
            texts = zip(subject.warning_ops, subject.warnings, strict=True)
            start = f"{ORDER_WARNING} {rank_in_warnings(a, report.rank)}."
            seen = [op for op, text in texts if text.startswith(start)]
            deviation = due[report.rank]
            # Once for each unit of the first iteration that goes another way: ``next_iter`` then
            # sets the status to WARNED, and nothing is said again.
            should = [] if deviation is None else [deviation.op] * deviation.units
            if seen == should:
                continue
            kind = "missing" if len(seen) < len(should) else "repeated" if should else "false"
            yield Finding(
                invariant=self.name,
                symptom="mismatch",
                api=a.api,
                kind=kind,
                op=(seen or should)[0],
                operation="forward",
                quantity="operations that warn of another order",
                ranks=(report.rank,),
                world_size=a.case.world_size,
                observed=str(seen),
                expected=str(should),
                note=f"debug level {a.case.debug_level}",
            )
            return

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """The number of such warnings over the whole program."""
        due = order_warnings(a) or (None,) * a.case.world_size
        right = by_rank([0 if deviation is None else deviation.units for deviation in due])
        told = Variable("told")
        numbers = [rank_in_warnings(a, rank) for rank in range(a.case.world_size)]
        own = numbers == list(range(a.case.world_size))
        rank: Value = Variable("rank") if own else by_rank(numbers)
        return Evidence(
            first=(Do(call=call("steps.watching.warnings_given"), into=(told,)),),
            seen=(call("steps.names.starting", told, ORDER_WARNING, rank),),
            judge=judged("other", "warnings of another order", SEEN, right),
        )


ORDER = (OrderError(), OrderWarning())

"""Parity with DDP: losses, outputs, gradients, parameters and buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from fsdpfuzz.case import Anatomy, cast_buffer
from fsdpfuzz.case.names import parts_of
from fsdpfuzz.case.recipe import Do, Inside, Value, Variable, call, dtype
from fsdpfuzz.case.tensor_parallel import data_ranks
from fsdpfuzz.expect import carried_by_steps, parting
from fsdpfuzz.invariants.base import (
    Invariant,
    broken,
    operation,
    subjects,
    tolerance,
    unit_of_parameter,
    variant_name,
)
from fsdpfuzz.invariants.evidence import (
    MISSHAPEN,
    OBSERVED_MISSING,
    PLAIN,
    RIGHT,
    SEEN,
    WHOLE,
    Evidence,
    held,
    judged,
    looked_at,
    off,
    plain_gradient,
    shard_evidence,
)
from fsdpfuzz.observations import Comparison, Observation, Quantity
from fsdpfuzz.verdict import Finding

_RATIO_SLACK, _ROUNDINGS = 0.01, 8
"""How far from a ratio a deviation may be that is told by it: at least, and in roundings."""
_KEPT = Variable("kept")


class Parity(Invariant):
    """What FSDP computes is what the plain model computes, up to rounding."""

    follows = True
    quantities: ClassVar[tuple[Quantity, ...]]
    results: ClassVar[tuple[str, ...]] = ()
    """Names of the results of operations that it is about."""

    def check(self, a: Anatomy, observation: Observation) -> Iterator[Finding]:
        """For each variant the largest deviation of the earliest operation with any."""
        worst: dict[str, tuple[list[int], Comparison, float, Anatomy]] = {}
        until = parting(a)
        for report, subject, run in subjects(a, observation):
            found = self._first_broken(run, subject.comparisons, until)
            if found is None:
                continue
            first, slack = found
            variant = variant_name(subject)
            ranks, known, *_ = worst.setdefault(variant, ([], first, slack, run))
            ranks.append(report.rank)
            # The earliest operation first, then the largest
            # deviation: what is later follows from it.
            if (-first.op, first.error) > (-known.op, known.error):
                worst[variant] = (ranks, first, slack, run)
        for variant, (ranks, comparison, slack, run) in worst.items():
            yield self._finding(run, variant, tuple(ranks), comparison, slack)

    def slack(self, a: Anatomy, comparisons: Iterable[Comparison], c: Comparison) -> float:
        """What is allowed beyond rounding, by the other comparisons of the rank: nothing."""
        return 0.0

    def _first_broken(
        self, a: Anatomy, comparisons: Sequence[Comparison], until: int | None
    ) -> tuple[Comparison, float] | None:
        """The largest deviation of the earliest operation at which there is any, and its slack.

        What comes later follows from it: a wrong gradient makes wrong parameters. From ``until``
        on ranks take different paths, and FSDP promises nothing of the results.
        """
        found = [
            (c, self.slack(a, comparisons, c))
            for c in self._about(comparisons)
            if (until is None or c.op < until) and broken(c)
        ]
        left = [(c, slack) for c, slack in found if broken(c, slack)]
        return max(left, key=lambda one: (-one[0].op, one[0].error), default=None)

    def _about(self, comparisons: Iterable[Comparison]) -> Iterable[Comparison]:
        """Those that it judges."""
        return [
            c
            for c in comparisons
            if c.quantity in self.quantities
            or (c.quantity == "result" and parts_of(c.name)[0] in self.results)
        ]

    def _finding(
        self, a: Anatomy, variant: str, ranks: tuple[int, ...], c: Comparison, slack: float
    ) -> Finding:
        return Finding(
            invariant=self.name,
            symptom="mismatch",
            api=a.api,
            detail=detail_of(c, data_ranks(a.case)),
            variant=variant,
            op=c.op if c.op < len(a.case.program) else -1,
            operation=operation(a, c.op),
            quantity=c.quantity,
            name=c.name,
            unit=unit_of_parameter(a.at(c.op), c.name),
            ranks=ranks,
            world_size=a.case.world_size,
            observed=f"{c.observed:.9g}",
            expected=f"{c.expected:.9g}",
            allowed=tolerance(c) + slack,
            baseline=None if c.exact else c.baseline,
        )


class WholeParity(Parity):
    """Of a tensor that every rank has whole."""

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """The variable, or what it holds of a parameter, as the operation leaves it."""
        if finding.detail.endswith("-missing"):
            variable = parts_of(finding.name)[0]
            names = call("steps.names.keys", Variable(variable))
            judge = judged("other", f"the keys of {variable}", SEEN, RIGHT)
            return Evidence(
                last=finding.op,
                against="reference",
                loads_state=False,
                seen=(names,),
                judge=judge,
            )
        seen = looked_at(finding.name) if self.results else Variable(finding.quantity)
        return Evidence(
            last=finding.op,
            against="reference",
            seen=(seen,),
            judge=off(finding.name, SEEN, RIGHT, finding),
        )


class LossParity(WholeParity):
    """Losses."""

    name = "loss_parity"
    summary = "every rank's loss equals that of the reference"
    wrong = "computes a wrong loss"
    quantities = ("loss",)


class OutputParity(WholeParity):
    """Outputs."""

    name = "output_parity"
    summary = "outputs equal those of the reference"
    wrong = "computes a wrong output"
    quantities = ("output",)


class GradParity(Parity):
    """Gradients of parameters and of inputs."""

    name = "grad_parity"
    summary = "this rank's part of each gradient equals the same part of the averaged gradient"
    wrong = "computes a wrong gradient"
    quantities = ("grad", "input_grad")

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """The gradient of the parameter that the finding names, or of an input."""
        if finding.quantity == "input_grad":
            return self._of_an_input(a, finding)
        name = a.canonical(finding.name)
        right: Value = plain_gradient(a, name, finding)
        other = WHOLE
        whole: Value = WHOLE
        managed = a.at(finding.op).owners.get(name) is not None
        if managed and not a.fsdp1 and isinstance(right, Inside):
            # Where FSDP has the parameter itself, both trainings end with the same statement.
            right, other, whole = None, PLAIN, Inside(PLAIN.name, "grad")
        missing = finding.detail == OBSERVED_MISSING
        shard = shard_evidence(a, name, grads=True, missing=missing, whole=whole)
        return Evidence(
            last=finding.op,
            against="reference",
            seen=shard.kept,
            right=right,
            judge=shard.off(f"gradient of {name}", finding),
            into=shard.into,
            other=other,
        )

    def _of_an_input(self, a: Anatomy, finding: Finding) -> Evidence:
        forwards = [i for i, op in enumerate(a.case.program) if op.runs_model]
        number = int(finding.name.partition("[")[2].rstrip("]"))
        before = sum(i < finding.op for i in forwards)
        x: Value = Variable("x")
        keep: tuple[Do, ...] = ()
        if number != before - 1:
            keep = (Do(call=call(".append", _KEPT, Variable("x"))),)
            x = call("steps.names.item", _KEPT, number)
        return Evidence(
            last=finding.op,
            against="reference",
            each_forward=keep,
            seen=(call("steps.shards.gradient", x, True),),
            judge=off(finding.name, SEEN, RIGHT, finding),
        )


class ParamParity(Parity):
    """Parameters after each step."""

    name = "param_parity"
    summary = "parameters equal those of the reference after each step"
    wrong = "trains to wrong parameters"
    quantities = ("param",)

    # Ranks that cut a layer sum up in another order than DDP: where terms cancel, its gradient can
    # be zero and theirs a rounding error, of which Adam makes a step like any other.
    def slack(self, a: Anatomy, comparisons: Iterable[Comparison], c: Comparison) -> float:
        """What the optimizer makes of a deviation of the gradient that counts as rounding."""
        # A scaler's gradients are as many times as far off, and steps do not take them so; what a
        # lower dtype loses is measured.
        if c.exact or c.coarse is not None or a.case.grad_scaler is not None:
            return 0.0
        gradients = (g for g in comparisons if g.quantity == "grad" and g.op < c.op)
        own = (g.error for g in gradients if g.name in (c.name, "*") and not broken(g))
        return carried_by_steps(a.case, c.op, max(own, default=0.0))

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """The parameter that the finding names."""
        name = a.canonical(finding.name)
        shard = shard_evidence(a, name, grads=False)
        return Evidence(
            last=finding.op,
            against="reference",
            seen=shard.kept,
            # Where FSDP has the parameter itself, both trainings end with the same statement.
            right=None if len(shard.kept) == 1 and not a.fsdp1 else Inside("model", name),
            judge=shard.off(name, finding),
            into=shard.into,
            other=WHOLE,
        )


class BufferParity(Parity):
    """Buffers at the end."""

    follows = False
    name = "buffer_parity"
    summary = "buffers equal those of the reference bit for bit"
    wrong = "leaves wrong buffers"
    quantities = ("buffer",)

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """The buffer that the finding names."""
        # Recomputation calls modules in a backward as well; nothing else changes a buffer.
        passes = [i for i, op in enumerate(a.case.program) if op.runs_model or op.gives_gradients]
        cast, buffer = cast_buffer(a, finding.name), held(finding.name)
        return Evidence(
            last=max(passes, default=None),
            against="reference",
            seen=(buffer,),
            right=call(".to", buffer, dtype(cast)) if cast else None,
            judge=off(finding.name, SEEN, RIGHT, finding),
        )


def detail_of(comparison: Comparison, ranks: int) -> str:
    """What sort of deviation it is, of gradients that are averaged over so many ``ranks``."""
    if comparison.missing == "shape":
        return MISSHAPEN
    if comparison.missing:
        return f"{comparison.missing}-missing"
    if not comparison.finite:
        return "not-finite"
    observed, expected = comparison.observed, comparison.expected
    if observed == 0.0:
        return "zero"
    if expected != 0.0:
        # What a missing, or a second, division by the ranks looks like: as on gloo before torch
        # 2.9, where ReduceOp.AVG summed up (pytorch issue 162338).
        slack = max(_RATIO_SLACK, _ROUNDINGS * comparison.eps)
        for ratio, text in ((float(ranks), "times-ranks"), (1.0 / ranks, "over-ranks")):
            if abs(observed / expected / ratio - 1.0) < slack:
                return text
    return "other"


PARITY = (OutputParity(), LossParity(), GradParity(), ParamParity(), BufferParity())

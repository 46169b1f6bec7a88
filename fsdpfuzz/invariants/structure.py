"""Rules about what FSDP does with parameters: freezing, resharding, the wrap plan."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpfuzz.case import Anatomy
from fsdpfuzz.case.recipe import MODEL, Do, Inside, call
from fsdpfuzz.expect import may_stay_whole
from fsdpfuzz.invariants.base import Invariant, left_behind, subjects, variant_name
from fsdpfuzz.invariants.evidence import (
    SEEN,
    WHOLE,
    Evidence,
    judged,
    shard_evidence,
    texts,
)
from fsdpfuzz.observations import Observation
from fsdpfuzz.verdict import Finding

_CHANGED, _WITH_GRAD = "changed", "has-a-gradient"


class FrozenUntouched(Invariant):
    """Frozen parameters."""

    name = "frozen_untouched"
    summary = "frozen parameters keep value and get no gradient"
    wrong = "touches a frozen parameter"

    def check(self, a: Anatomy, observation: Observation) -> Iterator[Finding]:
        """The first parameter that was changed, or got a gradient."""
        for report, subject, run in subjects(a, observation):
            for names, kind in (
                (subject.frozen_changed, _CHANGED),
                (subject.frozen_with_grad, _WITH_GRAD),
            ):
                if names:
                    yield Finding(
                        invariant=self.name,
                        symptom="mismatch",
                        api=a.api,
                        kind=kind,
                        variant=variant_name(subject),
                        quantity="frozen parameter",
                        name=names[0],
                        unit=run.last.owners.get(names[0]),
                        ranks=(report.rank,),
                        world_size=a.case.world_size,
                        observed=kind.replace("-", " "),
                        expected="untouched",
                        note=f"{len(names)} in all",
                    )
                    return

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """The parameter's gradient against zeros, or its value against that before."""
        name = a.canonical(finding.name)
        grads = finding.kind == _WITH_GRAD
        shard = shard_evidence(a, name, grads=grads)
        before = call("steps.names.copy", Inside("model", name), grads)
        # One for all: parameters of a case are mostly touched together.
        return Evidence(
            built=(Do(call=before, into=(WHOLE,), who="fsdp"),),
            seen=shard.kept,
            judge=shard.off(f"the frozen {name}", finding),
            into=shard.into,
            other=WHOLE,
        )


class ReshardedAfterBackward(Invariant):
    """Units after backward."""

    name = "resharded_after_backward"
    summary = "after backward every unit is sharded again"
    wrong = "leaves a unit unsharded after backward"
    costs = True

    def check(self, a: Anatomy, observation: Observation) -> Iterator[Finding]:
        """The first backward that leaves a unit whole."""
        for report, subject, run in subjects(a, observation):
            for state in subject.unit_states:
                exempt = may_stay_whole(run, state.op)
                unsharded = [path for path in state.unsharded if path not in exempt]
                if unsharded:
                    told = f"{unsharded} unsharded", "sharded"
                    yield left_behind(self, a, subject, state.op, unsharded[0], report.rank, *told)
                    return

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """Whether the unit that the finding names is whole."""
        unit = finding.unit or ""
        if a.fsdp1:
            return Evidence(
                last=finding.op,
                seen=(call("steps.fsdp1.units.unsharded", MODEL),),
                judge=judged("among", SEEN, texts([unit]), "is not sharded"),
            )
        owned = [p.fqn for p in a.owned[unit]]
        return Evidence(
            last=finding.op,
            seen=(call("steps.fsdp2.units.unsharded", MODEL),),
            judge=judged("among", SEEN, texts(owned), "is not sharded"),
        )


class WrappedAsPlanned(Invariant):
    """The units themselves."""

    name = "wrapped_as_planned"
    summary = "FSDP makes the units that the plan names"
    wrong = "makes other units than asked for"

    def check(self, a: Anatomy, observation: Observation) -> Iterator[Finding]:
        """The first rank whose units differ."""
        expected = sorted(a.last.units)
        for report, subject, _ in subjects(a, observation):
            if subject.name == "case" and sorted(subject.units) != expected:
                yield Finding(
                    invariant=self.name,
                    symptom="mismatch",
                    api=a.api,
                    kind=_than(set(subject.units), set(expected)),
                    quantity="units",
                    ranks=(report.rank,),
                    world_size=a.case.world_size,
                    observed=str(sorted(subject.units)),
                    expected=str(expected),
                )
                return

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """The units by name."""
        return Evidence(
            # Before the first operation, unless one of them wraps the model anew.
            last=None if any(op.renews for op in a.case.program) else -1,
            seen=(call(f"steps.{a.api}.units.names", MODEL),),
            judge=judged("other", "units", SEEN, texts(sorted(a.units))),
        )


def _than(seen: set[str], expected: set[str]) -> str:
    return "more" if seen > expected else "less" if seen < expected else "other"


STRUCTURE = (FrozenUntouched(), ReshardedAfterBackward(), WrappedAsPlanned())

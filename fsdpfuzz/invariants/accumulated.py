"""Gradients that wait for their reduction are kept in the dtype that they are reduced in."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpfuzz.case import Anatomy
from fsdpfuzz.case.recipe import MODEL, call
from fsdpfuzz.expect import waiting_bytes
from fsdpfuzz.invariants.base import Invariant, operation, reduces_in_own, subjects, variant_name
from fsdpfuzz.invariants.evidence import SEEN, Evidence, judged
from fsdpfuzz.invariants.hooks import by_rank
from fsdpfuzz.observations import Observation
from fsdpfuzz.verdict import Finding

_QUANTITY = "bytes of gradients"


# ``FSDPParam.to_accumulated_grad_if_needed`` in fsdp/_fully_shard/_fsdp_param.py casts them at the
# end of a backward without gradient sync.
class WaitingGradients(Invariant):
    """Micro-batches are added up in ``reduce_dtype``, which rounds less (fsdp2)."""

    name = "waiting_gradients"
    summary = "gradients that wait for their reduction are kept in reduce_dtype"
    wrong = "adds up gradients in another dtype than it reduces them in"

    def check(self, a: Anatomy, observation: Observation) -> Iterator[Finding]:
        """The first backward of each variant after which a rank has more or less."""
        told = set()
        own = reduces_in_own(observation.torch)
        for report, subject, run in subjects(a, observation):
            for state in subject.unit_states:
                if state.waiting is None or subject.name in told:
                    continue
                due = waiting_bytes(run, state.op, report.rank, own=own)
                if due is None or state.waiting == due:
                    continue
                told.add(subject.name)
                yield Finding(
                    invariant=self.name,
                    symptom="leak" if state.waiting > due else "mismatch",
                    api=a.api,
                    kind="more" if state.waiting > due else "less",
                    variant=variant_name(subject),
                    op=state.op,
                    operation=operation(a, state.op),
                    quantity=_QUANTITY,
                    ranks=(report.rank,),
                    world_size=a.case.world_size,
                    observed=str(state.waiting),
                    expected=str(due),
                    note="while they wait for their reduction",
                )

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """The bytes of gradients after that backward."""
        ranks = range(a.case.world_size)
        due = [waiting_bytes(a, finding.op, rank) or 0 for rank in ranks]
        if str(due[finding.ranks[0]]) != finding.expected:
            due = [waiting_bytes(a, finding.op, rank, own=True) or 0 for rank in ranks]
        return Evidence(
            last=finding.op,
            seen=(call("steps.fsdp2.memory.gradient_bytes", MODEL),),
            judge=judged("other", _QUANTITY, SEEN, by_rank(due)),
        )


ACCUMULATED = (WaitingGradients(),)

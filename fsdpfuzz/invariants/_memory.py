"""Rules about memory: a rank holds its shards and no more, and the tracker counts right."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpfuzz.invariants._base import Invariant, label, subjects
from fsdpfuzz.observations import Observation, Subject
from fsdpfuzz.spec import (
    Backward,
    CaseSpec,
    Plan,
    case_places,
    grad_bytes,
    grads_known,
    managed_bytes,
    settled,
    shard_bytes,
    steps_after_backward,
    unit_numel,
    unit_owner,
)
from fsdpfuzz.verdict import Finding

ACCURACY = 0.1
"""By how much the tracker's peak may differ from the device's, as a part of the device's."""
SMALL = 1 << 20
"""Bytes that the two may differ by in any case: rounding of single allocations and workspaces
weigh on a tiny model, and the documents ask for a tenth at gigabytes."""
_ROUNDED = 512
"""Bytes to which a CUDA allocation is rounded up, and the tracker's count with it."""


def _shards(case: CaseSpec, observation: Observation) -> Iterator[Finding]:
    told = set()
    for report, subject in subjects(observation):
        plan = _plan_of(case, subject)
        if plan is None or not settled(case) or any(s.unsharded for s in subject.unit_states):
            continue  # units that are whole after backward are told of by another rule
        if not _went_back(case, subject):
            continue
        should = shard_bytes(case, plan)
        where = f"{label(subject, case)}:{_more(subject.shard_bytes, should)}"
        if subject.shard_bytes != should and where not in told:
            told.add(where)
            yield Finding(
                invariant="shard_bytes",
                symptom="leak" if subject.shard_bytes > should else "mismatch",
                where=where,
                message=f"{subject.shard_bytes} bytes of parameters, but should be {should} "
                f"[rank {report.rank}, after the program]",
                observed=str(subject.shard_bytes),
                expected=str(should),
            )


def _went_back(case: CaseSpec, subject: Subject) -> bool:
    """Whether the last backward had anything to go back through; else units may stay whole."""
    last = max((i for i, op in enumerate(case.program) if isinstance(op, Backward)), default=None)
    if last is None or "mem_tracker" in case.probes:  # then nothing is looked at on the way
        return True
    return any(state.op == last for state in subject.unit_states)


def _grads(case: CaseSpec, observation: Observation) -> Iterator[Finding]:
    exact = grads_known(case)
    told = set()
    for report, subject in subjects(observation):
        plan = _plan_of(case, subject)
        if plan is None or not settled(case):
            continue
        most = grad_bytes(case, report.rank, plan)
        held = subject.grad_bytes
        where = f"{label(subject, case)}:{_more(held, most)}"
        if (held > most or (exact and held != most)) and where not in told:
            told.add(where)
            yield Finding(
                invariant="grad_bytes",
                symptom="leak" if held > most else "mismatch",
                where=where,
                message=f"{held} bytes of gradients, but should be "
                f"{'' if exact else 'at most '}{most} [rank {report.rank}, after the program]",
                observed=str(held),
                expected=str(most),
            )


def _tracker(case: CaseSpec, observation: Observation) -> Iterator[Finding]:
    if "mem_tracker" not in case.probes:
        return
    for report, subject in subjects(observation):
        peak, device = subject.tracker_peak, subject.device_peak
        shards, count = managed_bytes(case), len(unit_owner(case))
        if not shards <= subject.tracker_shards <= shards + _ROUNDED * count:
            yield Finding(
                invariant="tracker_accuracy",
                symptom="mismatch",
                where=f"{label(subject, case)}:shards-{_more(subject.tracker_shards, shards)}",
                message=f"the tracker counts {subject.tracker_shards} bytes of sharded parameters, "
                f"but should count {shards} [rank {report.rank}]",
                observed=str(subject.tracker_shards),
                expected=str(shards),
            )
            return
        if device:
            off = abs(peak - device) > max(ACCURACY * device, SMALL)
            should = f"{device} within {ACCURACY:.0%}, the device's"
        else:
            least = tracked_at_least(case)
            off = peak < least
            should = f"at least {least}, what must be there at once"
        if off:
            yield Finding(
                invariant="tracker_accuracy",
                symptom="mismatch",
                where=f"{label(subject, case)}:{_more(peak, device or peak + 1)}",
                message=f"the tracker's peak is {peak} bytes, but should be {should} "
                f"[rank {report.rank}]",
                observed=str(peak),
                expected=should,
            )
            return


def tracked_at_least(case: CaseSpec) -> int:
    """Bytes that lie on a rank at once where no device says what its peak was.

    The shards, and beside them one whole unit in the dtype it computes in, or, after a step,
    Adam's two moments.
    """
    shards = shard_bytes(case)
    adam = case.optimizer is not None and case.optimizer.name != "sgd"
    plain = grads_known_every_step(case) and not case.held_out
    moments = 2 * min(grad_bytes(case, rank) for rank in range(case.world_size))
    whole = unit_numel(case) * _item(case) if all_called(case) else 0
    stepped = adam and plain and steps_after_backward(case)
    return shards + max(whole, moments if stepped else 0)


def grads_known_every_step(case: CaseSpec) -> bool:
    """Whether an optimizer step sees all gradients: nothing frozen, unused or left out."""
    unused = any(not p.used for place in case_places(case) for p in place.parameters)
    return all_called(case) and not case.frozen and not unused


def all_called(case: CaseSpec) -> bool:
    """Whether every forward calls the root."""
    return not any(getattr(op, "target", "") for op in case.program)


def _item(case: CaseSpec) -> int:
    """Bytes of an element of a whole unit."""
    names = {unit.precision.param for unit in case.plan.units if unit.precision is not None}
    return 2 if names & {"float16", "bfloat16"} else 4


def _plan_of(case: CaseSpec, subject: Subject) -> Plan | None:
    """The plan of a subject that was measured; None for a twin that freezes differently."""
    if not subject.shard_bytes:
        return None
    if subject.name == "case":
        return case.plan
    twin = next((twin for twin in case.twins if twin.name == subject.name), None)
    if twin is None or twin.frozen is not None:
        return None
    return twin.plan or case.plan


def _more(held: int, should: int) -> str:
    return "more" if held > should else "less"


MEMORY = (
    Invariant(
        "shard_bytes", "a rank holds as many bytes of parameters as its shards have", _shards
    ),
    Invariant("grad_bytes", "a rank holds no more gradients than its shards have", _grads),
    Invariant(
        "tracker_accuracy",
        "the memory tracker's peak is the device's within a tenth",
        _tracker,
    ),
)

"""Rules about memory: a rank holds its shards and no more, and the tracker counts right."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpfuzz.case import WIDTHS, Anatomy, Backward
from fsdpfuzz.case.recipe import MODEL, Do, Value, Variable, call
from fsdpfuzz.expect import (
    grad_bytes,
    grads_known,
    managed_bytes,
    settled,
    shard_bytes,
    steps_after_backward,
    unit_numel,
    unreached_roots,
)
from fsdpfuzz.invariants.base import Invariant, subjects, variant_name
from fsdpfuzz.invariants.evidence import SEEN, Evidence, judged
from fsdpfuzz.invariants.hooks import by_rank
from fsdpfuzz.observations import Observation, Subject
from fsdpfuzz.verdict import Finding

ACCURACY = 0.1
"""By how much the tracker's peak may differ from the device's, as a part of the device's."""
SMALL = 1 << 20
"""Bytes that the two may differ by in any case: rounding of single allocations and workspaces
weigh on a tiny model, and the documents ask for a tenth at gigabytes."""
ROUNDED = 512
"""Bytes to which a CUDA allocation is rounded up, and the tracker's count with it."""
_SHARDS, _DEVICE, _LEAST = "shards", "device", "least"


class ShardBytes(Invariant):
    """Parameters."""

    name = "shard_bytes"
    summary = "a rank holds as many bytes of parameters as its shards have"
    wrong = "holds another amount of parameters than its shards"

    def check(self, a: Anatomy, observation: Observation) -> Iterator[Finding]:
        """The first rank of each variant with another number."""
        told = set()
        for report, subject, run in subjects(a, observation):
            if not _measured(a, subject) or not settled(run) or not _went_back(a, subject):
                continue
            if any(state.unsharded for state in subject.unit_states) or unreached_roots(run.last):
                continue  # units that are whole after backward are told of by another rule
            held, should = subject.shard_bytes, shard_bytes(run.last)
            if held != should and subject.name not in told:
                told.add(subject.name)
                yield Finding(
                    invariant=self.name,
                    symptom="leak" if held > should else "mismatch",
                    api=a.api,
                    kind=_more(held, should),
                    variant=variant_name(subject),
                    quantity="bytes of parameters",
                    ranks=(report.rank,),
                    world_size=a.case.world_size,
                    observed=str(held),
                    expected=str(should),
                    note="after the program",
                )

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """The bytes behind all that the API keeps."""
        return Evidence(
            seen=(call(f"steps.{a.api}.memory.held_bytes", MODEL),),
            judge=judged("other", "bytes of parameters", SEEN, shard_bytes(a)),
        )


class GradBytes(Invariant):
    """Gradients."""

    name = "grad_bytes"
    summary = "a rank holds no more gradients than its shards have"
    wrong = "holds another amount of gradients than its shards"

    def check(self, a: Anatomy, observation: Observation) -> Iterator[Finding]:
        """The first rank of each variant with more, or less where all are known."""
        told = set()
        for report, subject, run in subjects(a, observation):
            if not _measured(a, subject) or not settled(run) or subject.name in told:
                continue
            known, most = grads_known(run), grad_bytes(run.last, report.rank)
            held = subject.grad_bytes
            if held > most or (known and held != most):
                told.add(subject.name)
                yield Finding(
                    invariant=self.name,
                    symptom="leak" if held > most else "mismatch",
                    api=a.api,
                    kind=_more(held, most),
                    variant=variant_name(subject),
                    quantity="bytes of gradients",
                    ranks=(report.rank,),
                    world_size=a.case.world_size,
                    observed=str(held),
                    expected=str(most) if known else f"at most {most}",
                    note="after the program",
                )

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """The bytes of gradients, reduced or not; which are right may depend on the rank."""
        due = by_rank([grad_bytes(a, rank) for rank in range(a.case.world_size)])
        how = "other" if grads_known(a) else "more"
        seen: Value = call("steps.shards.gradient_bytes", call(".parameters", MODEL))
        if not a.fsdp1:
            seen = call("steps.fsdp2.memory.gradient_bytes", MODEL)
        return Evidence(
            seen=(seen,),
            judge=judged(how, "bytes of gradients", SEEN, due),
        )


class TrackerAccuracy(Invariant):
    """``FSDPMemTracker``."""

    name = "tracker_accuracy"
    summary = "the memory tracker's peak is the device's within a tenth"
    wrong = "has its memory tracked wrongly"

    def check(self, a: Anatomy, observation: Observation) -> Iterator[Finding]:
        """The first rank whose figures are off."""
        if "mem_tracker" not in a.case.probes:
            return
        for report, subject, _ in subjects(a, observation):
            found = _tracked(a, subject)
            if found is not None:
                what, held, right, should = found
                yield Finding(
                    invariant=self.name,
                    symptom="mismatch",
                    api=a.api,
                    kind=f"{what}-{_more(held, right)}",
                    quantity="bytes of shards" if what == _SHARDS else "bytes at the peak",
                    ranks=(report.rank,),
                    world_size=a.case.world_size,
                    observed=str(held),
                    expected=should,
                    note="by FSDPMemTracker",
                )
                return

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """The same figure of the tracker."""
        tracker, device = Variable("tracker"), Variable("device")
        what = finding.kind.partition("-")[0]
        peak: Value = call("steps.tracking.peak", tracker, device)
        if what == _SHARDS:
            low = managed_bytes(a)
            high = low + ROUNDED * len(a.owners)
            seen = call("steps.tracking.shards_at_peak", tracker)
            judge = judged("outside", "bytes of shards", SEEN, low, high)
            return Evidence(seen=(seen,), judge=judge)
        if what == _LEAST:
            least = tracked_at_least(a)
            return Evidence(seen=(peak,), judge=judged("less", "bytes at the peak", SEEN, least))
        before = Variable("before")
        used = call("steps.tracking.used_at_peak", device, before)
        return Evidence(
            first=(Do(call=call("steps.tracking.allocated", device), into=(before,)),),
            seen=(peak,),
            judge=judged("far", "bytes at the peak", SEEN, used, ACCURACY, SMALL),
        )


def _tracked(a: Anatomy, subject: Subject) -> tuple[str, int, int, str] | None:
    """What is off: which figure, what it is, what it should be, and that in words."""
    peak, device = subject.tracker_peak, subject.device_peak
    shards, count = managed_bytes(a), len(a.owners)
    if not shards <= subject.tracker_shards <= shards + ROUNDED * count:
        return _SHARDS, subject.tracker_shards, shards, str(shards)
    if device:
        if abs(peak - device) > max(ACCURACY * device, SMALL):
            return _DEVICE, peak, device, f"{device} within {ACCURACY:.0%}, the device's"
        return None
    least = tracked_at_least(a)
    if peak < least:
        return _LEAST, peak, least, f"at least {least}, what must be there at once"
    return None


def tracked_at_least(a: Anatomy) -> int:
    """Bytes that lie on a rank at once where no device says what its peak was.

    The shards, and beside them one whole unit in the dtype it computes in, or, after a step,
    Adam's two moments.
    """
    case = a.case
    adam = case.optimizer is not None and case.optimizer.name != "sgd"
    plain = grads_known_every_step(a) and not case.held_out
    moments = 2 * min(grad_bytes(a, rank) for rank in range(case.world_size))
    whole = unit_numel(a) * _item(a) if all_called(a) else 0
    stepped = adam and plain and steps_after_backward(a)
    return shard_bytes(a) + max(whole, moments if stepped else 0)


def grads_known_every_step(a: Anatomy) -> bool:
    """Whether an optimizer step sees all gradients: nothing frozen, unused or left out."""
    return all_called(a) and not a.case.frozen and all(p.used for p in a.parameters)


def all_called(a: Anatomy) -> bool:
    """Whether every forward calls the root."""
    return not any(getattr(op, "target", "") for op in a.case.program)


def _item(a: Anatomy) -> int:
    """Bytes of an element of a whole unit."""
    names = {u.precision.param for u in a.options.values() if u.precision is not None}
    return min((WIDTHS[name] for name in names if name is not None), default=4)


def _measured(a: Anatomy, subject: Subject) -> bool:
    """Whether a subject's memory can be told: not of a variant that freezes differently."""
    if not subject.shard_bytes:
        return False
    variant = next((v for v in a.case.twins if v.name == subject.name), None)
    return variant is None or variant.frozen is None


def _went_back(a: Anatomy, subject: Subject) -> bool:
    """Whether the last backward had anything to go back through; else units may stay whole."""
    backwards = [i for i, op in enumerate(a.case.program) if isinstance(op, Backward)]
    if not backwards or "mem_tracker" in a.case.probes:  # then nothing is looked at on the way
        return True
    return any(state.op == backwards[-1] for state in subject.unit_states)


def _more(held: int, should: int) -> str:
    return "more" if held > should else "less"


MEMORY = (ShardBytes(), GradBytes(), TrackerAccuracy())

"""Rules about memory: a rank holds its shards and no more, and the tracker counts right."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from fsdpfuzz.case import WIDTHS, Anatomy
from fsdpfuzz.case.lacking import may_lack_grads, unreached_roots
from fsdpfuzz.case.recipe import MODEL, Do, Items, Value, Variable, call
from fsdpfuzz.expect import (
    grad_bytes,
    grads_known,
    kept_bytes,
    managed_bytes,
    set_bytes,
    settled,
    shard_bytes,
    steps_after_backward,
    unit_numel,
    whole_bytes,
)
from fsdpfuzz.invariants.base import Invariant, left_behind, subjects, variant_name
from fsdpfuzz.invariants.evidence import SEEN, Evidence, judged, texts
from fsdpfuzz.invariants.hooks import by_rank
from fsdpfuzz.observations import Observation, Subject
from fsdpfuzz.verdict import Finding

_LEFT = "what is left of the tracker"
ACCURACY = 0.1
"""By how much the tracker's peak may differ from the device's, as a part of the device's."""
SMALL = 1 << 20
"""Bytes that the two may differ by in any case, beside what kernels allocate for themselves:
rounding of single allocations weighs on a tiny model, and the documents ask for a tenth at
gigabytes."""
# ``_PYTORCH_MIN_ALLOCATE`` in torch/distributed/_tools/mem_tracker.py.
ROUNDED = 512
"""Bytes to which a CUDA allocation is rounded up, and the tracker's count with it."""
_SHARDS, _DEVICE, _LEAST, _WHOLE = "shards", "device", "least", "whole"
_QUANTITIES = {_SHARDS: "bytes of shards", _WHOLE: "bytes of whole parameters"}


class _HeldBytes(Invariant):
    """After the program, in bytes."""

    costs = True
    quantity: ClassVar[str]

    def check(self, a: Anatomy, observation: Observation) -> Iterator[Finding]:
        """The first rank of each variant with more or less than it may hold."""
        told = set()
        for report, subject, run in subjects(a, observation):
            if subject.name in told or not _measured(a, subject) or not settled(run):
                continue
            bounds = self.bounds(run, report.rank, subject)
            if bounds is None:
                continue
            held, (least, most) = self.held(subject), bounds
            if least <= held <= most:
                continue
            told.add(subject.name)
            yield Finding(
                invariant=self.name,
                symptom="leak" if held > most else "mismatch",
                api=a.api,
                kind=_more(held, most),
                variant=variant_name(subject),
                quantity=self.quantity,
                ranks=(report.rank,),
                world_size=a.case.world_size,
                observed=str(held),
                expected=_range(least, most),
                note="after the program",
            )

    @abstractmethod
    def held(self, subject: Subject) -> int:
        """What was seen."""

    @abstractmethod
    def bounds(self, run: Anatomy, rank: int, subject: Subject) -> tuple[int, int] | None:
        """The least and the most that a rank may hold; None where nothing is promised."""


class ShardBytes(_HeldBytes):
    """Parameters."""

    name = "shard_bytes"
    summary = "a rank holds as many bytes of parameters as its shards have"
    wrong = "holds another amount of parameters than its shards"
    quantity = "bytes of parameters"

    def held(self, subject: Subject) -> int:
        """All that the API keeps."""
        return subject.shard_bytes

    def bounds(self, run: Anatomy, rank: int, subject: Subject) -> tuple[int, int] | None:
        """The shards, and beside them, whole, the units that no backward reached."""
        unreached = unreached_roots(run.last)
        if not _went_back(run, subject):
            return None
        if any(not unreached.issuperset(state.unsharded) for state in subject.unit_states[-1:]):
            return None  # units that are whole after backward are told of by another rule
        return _shards(run)

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """The bytes behind all that the API keeps."""
        least, most = _shards(a)
        judge = judged("outside", self.quantity, SEEN, least, most)
        if least == most:
            judge = judged("other", self.quantity, SEEN, least)
        return Evidence(seen=(call(f"steps.{a.api}.memory.held_bytes", MODEL),), judge=judge)


def _shards(a: Anatomy) -> tuple[int, int]:
    # Under the last plan: a program may have wrapped its model anew.
    least = shard_bytes(a.last)
    if a.case.keep_unsharded_storage:
        return least + kept_bytes(a.last), least + whole_bytes(a.last, a.last.units)
    return least, least + whole_bytes(a.last, unreached_roots(a.last)) + set_bytes(a.last)


class GradBytes(_HeldBytes):
    """Gradients."""

    name = "grad_bytes"
    summary = "a rank holds no more gradients than its shards have"
    wrong = "holds another amount of gradients than its shards"
    quantity = "bytes of gradients"

    def held(self, subject: Subject) -> int:
        """Reduced or not."""
        return subject.grad_bytes

    def bounds(self, run: Anatomy, rank: int, subject: Subject) -> tuple[int, int]:
        """All of them, or up to that where it depends on more than the case which there are."""
        most = grad_bytes(run.last, rank)
        return most if grads_known(run) else 0, most

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """The bytes of gradients, reduced or not; which are right may depend on the rank."""
        due = by_rank([grad_bytes(a, rank) for rank in range(a.case.world_size)])
        how = "other" if grads_known(a) else "more"
        seen: Value = call("steps.shards.gradient_bytes", call(".parameters", MODEL))
        if not a.fsdp1:
            seen = call("steps.fsdp2.memory.gradient_bytes", MODEL)
        return Evidence(
            seen=(seen,),
            judge=judged(how, self.quantity, SEEN, due),
        )


class FreedWhenSharded(Invariant):
    """What was gathered (fsdp2)."""

    name = "freed_when_sharded"
    summary = "a unit that is sharded keeps no memory of its whole parameters"
    wrong = "keeps the whole parameters of a unit that is sharded"
    costs = True

    def check(self, a: Anatomy, observation: Observation) -> Iterator[Finding]:
        """The first forward or backward of each variant that leaves any."""
        if a.case.keep_unsharded_storage:
            return  # as it was asked to
        told = set()
        for report, subject, run in subjects(a, observation):
            for state in subject.unfreed:
                now = run.at(state.op)
                # Over one rank there is nothing to gather, nor to free.
                kept = [path for path in state.units if now.shards(path) > 1]
                if not kept or subject.name in told:
                    continue
                told.add(subject.name)
                words = f"{kept} keep whole parameters", "none that is sharded"
                yield left_behind(self, a, subject, state.op, kept[0], report.rank, *words)

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """Whether the unit that the finding names keeps what was gathered."""
        owned = [p.fqn for p in a.owned[finding.unit or ""]]
        return Evidence(
            last=finding.op,
            seen=(call("steps.fsdp2.memory.unfreed", MODEL),),
            judge=judged("among", SEEN, texts(owned), "is sharded and kept whole besides"),
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
                    quantity=_QUANTITIES.get(what, "bytes at the peak"),
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
            # Each tensor may be rounded up by itself.
            high = low + ROUNDED * len(a.owners)
            seen = call("steps.tracking.shards_at_peak", tracker)
            judge = judged("outside", "bytes of shards", SEEN, low, high)
            return Evidence(seen=(seen,), judge=judge)
        if what == _WHOLE:
            seen = call("steps.tracking.unsharded_now", tracker)
            return Evidence(seen=(seen,), judge=judged("other", _QUANTITIES[what], SEEN, 0))
        if what == _LEAST:
            least = tracked_at_least(a)
            return Evidence(seen=(peak,), judge=judged("less", "bytes at the peak", SEEN, least))
        before = Variable("before")
        used = call("steps.tracking.used_at_peak", device, before)
        return Evidence(
            first=(Do(call=call("steps.tracking.allocated", device), into=(before,)),),
            seen=(peak,),
            judge=judged("far", "bytes at the peak", SEEN, used, ACCURACY, _slack(a)),
        )


def _tracked(a: Anatomy, subject: Subject) -> tuple[str, int, int, str] | None:
    """What is off: which figure, what it is, what it should be, and that in words."""
    peak, device = subject.tracker_peak, subject.device_peak
    shards, count = managed_bytes(a), len(a.owners)
    if not shards <= subject.tracker_shards <= shards + ROUNDED * count:
        return _SHARDS, subject.tracker_shards, shards, str(shards)
    whole = subject.tracker_unsharded
    if whole and _all_resharded(a, subject):
        return _WHOLE, whole, 0, "0, as all units are sharded again"
    if device:
        if abs(peak - device) > max(ACCURACY * device, _slack(a)):
            return _DEVICE, peak, device, f"{device} within {ACCURACY:.0%}, the device's"
        return None
    least = tracked_at_least(a)
    if peak < least:
        return _LEAST, peak, least, f"at least {least}, what must be there at once"
    return None


def _slack(a: Anatomy) -> int:
    """Bytes by which the tracker's peak and the device's may differ in any case."""
    return SMALL + max(place.node.scratch for place in a.places if place.node is not None)


def _all_resharded(a: Anatomy, subject: Subject) -> bool:
    """Whether no unit was seen whole after the last backward, behind which no forward comes."""
    if a.case.keep_unsharded_storage:
        return False  # they keep what they were gathered into
    last = [i for i, op in enumerate(a.case.program) if op.runs_model or op.gives_gradients][-1:]
    state = subject.unit_states[-1:]
    return bool(state) and state[0].op in last and not state[0].unsharded


def tracked_at_least(a: Anatomy) -> int:
    """Bytes that lie on a rank at once where no device says what its peak was.

    The shards, and beside them one whole unit in the dtype it computes in, or, after a step,
    Adam's two moments.
    """
    case = a.case
    adam = case.optimizer is not None and case.optimizer.adapts
    plain = all_called(a) and not case.held_out and not may_lack_grads(a)
    # The least of all ranks, so that one bound holds on each: shards are uneven.
    moments = 2 * min(grad_bytes(a, rank) for rank in range(case.world_size))
    whole = unit_numel(a) * _item(a) if all_called(a) else 0
    stepped = adam and plain and steps_after_backward(a)
    return shard_bytes(a) + max(whole, moments if stepped else 0)


def all_called(a: Anatomy) -> bool:
    """Whether every forward calls the root."""
    return not any(op.called for op in a.case.program)


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
    backwards = [i for i, op in enumerate(a.case.program) if op.gives_gradients]
    if not backwards or "mem_tracker" in a.case.probes:  # then nothing is looked at on the way
        return True
    return any(state.op == backwards[-1] for state in subject.unit_states)


def _range(least: int, most: int) -> str:
    if least == most:
        return str(least)
    return f"{least} to {most}" if least else f"at most {most}"


def _more(held: int, should: int) -> str:
    return "more" if held > should else "less"


class TrackerEnds(Invariant):
    """``FSDPMemTracker`` once it has ended."""

    name = "tracker_ends"
    summary = "once the memory tracker has ended nothing runs its code any more"
    wrong = "is tracked on once its memory tracker has ended"

    def check(self, a: Anatomy, observation: Observation) -> Iterator[Finding]:
        """The first rank on which anything is left."""
        for report, subject, _ in subjects(a, observation):
            if subject.tracker_left:
                yield Finding(
                    invariant=self.name,
                    symptom="leak",
                    api=a.api,
                    kind=subject.tracker_left[0].partition(" ")[0],
                    quantity=_LEFT,
                    ranks=(report.rank,),
                    world_size=a.case.world_size,
                    observed=", ".join(subject.tracker_left),
                    expected="nothing",
                    note="by FSDPMemTracker",
                )
                return

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """All that is left."""
        seen = call("steps.tracking.left", MODEL)
        return Evidence(seen=(seen,), judge=judged("other", _LEFT, SEEN, Items("list", ())))


MEMORY = (ShardBytes(), GradBytes(), FreedWhenSharded(), TrackerAccuracy(), TrackerEnds())

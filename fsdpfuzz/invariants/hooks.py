"""Rules about hooks that must run, and only when due: checkpoints, offloads, reshards."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from fsdpfuzz.case import Anatomy
from fsdpfuzz.case.recipe import Do, Global, Items, Value, Variable, call
from fsdpfuzz.expect import backward_reshards, checkpoint_entries, offload_entries
from fsdpfuzz.invariants.base import Invariant, subjects, variant_name
from fsdpfuzz.invariants.evidence import SEEN, Evidence, judged
from fsdpfuzz.observations import Observation, Subject
from fsdpfuzz.verdict import Finding

_CALLS = Variable("calls")


class _Entered(Invariant):
    """Once for each call of a module that is to be, and never else."""

    owner: ClassVar[str]
    """A class, not a name in a module: a script counts every entry, whoever imported it."""
    method: ClassVar[str]
    quantity: ClassVar[str]

    @abstractmethod
    def entries(self, subject: Subject) -> tuple[int, ...]:
        """What was counted for each forward; empty if nothing was."""

    @abstractmethod
    def due(self, a: Anatomy, rank: int) -> tuple[int, ...]:
        """For each forward."""

    def check(self, a: Anatomy, observation: Observation) -> Iterator[Finding]:
        """The first forward of each variant with another number."""
        if a.imported is not None:
            return  # which modules it calls may depend on the data
        forwards = [i for i, op in enumerate(a.case.program) if op.runs_model]
        told = set()
        for report, subject, run in subjects(a, observation):
            found = self.entries(subject)
            if subject.name in told or not found:
                continue
            for op, seen, should in zip(forwards, found, self.due(run, report.rank), strict=True):
                if seen == should:
                    continue
                told.add(subject.name)
                yield Finding(
                    invariant=self.name,
                    symptom="mismatch",
                    api=a.api,
                    kind="more" if seen > should else "less",
                    variant=variant_name(subject),
                    op=op,
                    operation="forward",
                    quantity=self.quantity,
                    ranks=(report.rank,),
                    world_size=a.case.world_size,
                    observed=str(seen),
                    expected=str(should),
                )
                break

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """All entries up to the forward."""
        forwards = sum(op.runs_model for op in a.case.program[: finding.op + 1])
        ranks = range(a.case.world_size)
        due = [sum(self.due(a, rank)[:forwards]) for rank in ranks]
        return Evidence(
            last=finding.op,
            first=(_spy(Global(self.owner), self.method),),
            seen=(call("steps.names.count", _CALLS),),
            judge=judged("other", self.quantity, SEEN, by_rank(due)),
        )


class OffloadEntered(_Entered):
    """Activation offload."""

    name = "offload_entered"
    summary = "save_on_cpu is entered once for each call of an offloaded module, and never else"
    wrong = "offloads activations more or less often than asked"
    owner = "torch.autograd.graph.save_on_cpu"
    method = "__init__"
    quantity = "entries of save_on_cpu"

    def entries(self, subject: Subject) -> tuple[int, ...]:
        """Of this way."""
        return subject.saved_on_cpu

    def due(self, a: Anatomy, rank: int) -> tuple[int, ...]:
        """Calls of offloaded modules."""
        return offload_entries(a, rank)


class CheckpointEntered(_Entered):
    """Activation checkpointing that is not reentrant."""

    name = "checkpoint_entered"
    summary = (
        "non-reentrant checkpointing is entered once for each call of a module that it recomputes"
    )
    wrong = "checkpoints activations more or less often than asked"
    owner = "torch.utils.checkpoint._CheckpointFrame"
    method = "__init__"
    quantity = "entries of non-reentrant checkpointing"

    def entries(self, subject: Subject) -> tuple[int, ...]:
        """Of this way."""
        return subject.checkpointed

    def due(self, a: Anatomy, rank: int) -> tuple[int, ...]:
        """Calls of modules that are recomputed so."""
        return checkpoint_entries(a, rank, reentrant=False)


class ReentrantEntered(_Entered):
    """Reentrant activation checkpointing."""

    name = "reentrant_entered"
    summary = "reentrant checkpointing is entered once for each call of a module that it recomputes"
    wrong = "checkpoints activations, reentrant, more or less often than asked"
    owner = "torch.utils.checkpoint.CheckpointFunction"
    method = "apply"
    quantity = "entries of reentrant checkpointing"

    def entries(self, subject: Subject) -> tuple[int, ...]:
        """Of this way."""
        return subject.reentrant

    def due(self, a: Anatomy, rank: int) -> tuple[int, ...]:
        """Calls of modules that are recomputed so."""
        return checkpoint_entries(a, rank, reentrant=True)


# Hooks of frozen units are another kind, on their inputs
# (``_register_post_backward_reshard_only_hook`` in fsdp/_runtime_utils.py), so "frozen or not" has
# to be said.
class ReshardCount(Invariant):
    """Post-backward hooks of fsdp1."""

    name = "reshard_count"
    summary = "each unit that backward reaches is resharded once by its own hook, frozen or not"
    wrong = "reshards its units more or less often than it should"
    costs = True

    def check(self, a: Anatomy, observation: Observation) -> Iterator[Finding]:
        """The first backward of each variant with another number."""
        backwards = [i for i, op in enumerate(a.case.program) if op.gives_gradients]
        told = set()
        for report, subject, run in subjects(a, observation):
            due = backward_reshards(run, report.rank)
            if subject.name in told or due is None or not subject.backward_reshards:
                continue
            for op, seen, should in zip(backwards, subject.backward_reshards, due, strict=True):
                odd = {
                    path: (seen.get(path, 0), int(path in should))
                    # Of other units than the plan has `WrappedAsPlanned` tells.
                    for path in sorted(should.union(seen).intersection(run.at(op).units))
                    if seen.get(path, 0) != (path in should)
                }
                if not odd:
                    continue
                told.add(subject.name)
                path, (times, once) = next(iter(odd.items()))
                yield Finding(
                    invariant=self.name,
                    symptom="mismatch",
                    api=a.api,
                    kind="more" if times > once else "less",
                    variant=variant_name(subject),
                    op=op,
                    operation="backward",
                    unit=path,
                    quantity="reshards by the unit's own hook",
                    ranks=(report.rank,),
                    world_size=a.case.world_size,
                    observed=str(times),
                    expected=str(once),
                    note=f"{sum(seen.values())} units in all, but should be {len(should)}",
                )
                break

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """The units of all reshards up to the backward, sorted."""
        backwards = sum(op.gives_gradients for op in a.case.program[: finding.op + 1])
        due = []
        for rank in range(a.case.world_size):
            each = (backward_reshards(a, rank) or ())[:backwards]
            due.append(sorted(path for units in each for path in units))
        # In its module: ``_post_backward_hook`` and ``_post_backward_reshard_only_hook`` look the
        # function up there, so both are counted.
        owner = Global("torch.distributed.fsdp._runtime_utils")
        return Evidence(
            last=finding.op,
            first=(_spy(owner, "_post_backward_reshard"),),
            seen=(call("steps.fsdp1.units.names_of", Variable("model"), _CALLS),),
            judge=judged("other", "resharded by their own hooks", SEEN, by_rank(due)),
        )


def _spy(owner: Value, name: str) -> Do:
    return Do(call=call("steps.watching.calls_of", owner, name), into=(_CALLS,))


def by_rank(values: list[int] | list[list[str]]) -> Value:
    """One literal if all ranks have the same, else the rank's own of them."""
    made: list[Value] = [Items("list", tuple(v)) if isinstance(v, list) else v for v in values]
    if all(value == made[0] for value in made):
        return made[0]
    return call("steps.names.item", Items("list", tuple(made)), Variable("rank"))


HOOKS = (OffloadEntered(), CheckpointEntered(), ReentrantEntered(), ReshardCount())

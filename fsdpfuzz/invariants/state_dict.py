"""Rules about state dicts: the plain model's keys and values, and a load that restores them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from fsdpfuzz.case import Anatomy
from fsdpfuzz.case.modules.extra_state import STEPS, has_extra_state
from fsdpfuzz.case.operations.state_dict import UNTOUCHED, left_alone, left_out, state_step
from fsdpfuzz.case.paths import innermost
from fsdpfuzz.case.recipe import MODEL, Do, Inside, Items, Value, Variable, call, literal
from fsdpfuzz.expect import is_cut
from fsdpfuzz.invariants.base import (
    Invariant,
    broken,
    operation,
    subjects,
    tolerance,
    variant_name,
)
from fsdpfuzz.invariants.evidence import (
    RIGHT,
    SEEN,
    Evidence,
    bound,
    held,
    judged,
    last_state,
    shard_evidence,
)
from fsdpfuzz.observations import Comparison, Observation, Quantity, Subject
from fsdpfuzz.verdict import Finding

_STATE = Variable("state")


class StateDictKeys(Invariant):
    """Keys, shapes and dtypes."""

    name = "state_dict_keys"
    summary = "a state dict has the plain model's keys, shapes and dtypes"
    wrong = "saves a state dict with wrong entries"

    def check(self, a: Anatomy, observation: Observation) -> Iterator[Finding]:
        """The first entry of each sort that is wrong."""
        told = set()
        for report, subject, run in subjects(a, observation):
            for entry in subject.wrong_entries:
                if (subject.name, entry.kind) in told:
                    continue
                told.add((subject.name, entry.kind))
                alike = sum(e.kind == entry.kind for e in subject.wrong_entries)
                yield Finding(
                    invariant=self.name,
                    symptom="mismatch",
                    api=a.api,
                    kind=entry.kind,
                    variant=variant_name(subject),
                    op=entry.op,
                    operation=operation(a, entry.op),
                    quantity="entry",
                    name=entry.key,
                    unit=_unit_of(run.at(entry.op), entry.key),
                    ranks=(report.rank,),
                    world_size=a.case.world_size,
                    observed=entry.observed or entry.kind,
                    expected=entry.expected or "the plain model's keys, shapes and dtypes",
                    note=f"{alike} entries in all",
                )

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """The keys of the state dict against those that it must have."""
        op = last_state(a, finding.op)
        plain = Variable("plain")
        # Before it is wrapped: ``fully_shard`` changes the very parameters into DTensors.
        lacking = () if finding.op is None else tuple(sorted(left_out(a, finding.op)))
        limits: dict[str, Value] = {"without": literal(lacking)} if lacking else {}
        if op is not None and op.submodule:
            limits["prefix"] = f"{op.submodule}."
        taken = call(state_step(a, "forms"), MODEL, **limits)
        build = Do(call=taken, into=(plain,), who="fsdp")
        flat: tuple[str, ...] = ()
        if op is not None and op.form == "local":
            flat = tuple(sorted(owner for owner in a.units if is_cut(a, owner)))
        options: dict[str, Value] = {"flat": Items("tuple", flat)} if flat else {}
        absent = op is not None and op.on_rank0(a)
        if absent:
            cut = (fqn for fqn, owner in a.owners.items() if owner is not None and is_cut(a, owner))
            options["cut"] = Items("tuple", tuple(sorted(cut)))
        return Evidence(
            last=finding.op,
            built=(build,),
            loads_state=False,
            seen=(_entries(a, _STATE if op is None else op.named),),
            right=plain,
            judge=judged("entries", SEEN, RIGHT, absent, Variable("rank"), **options),
        )


class _StateValues(Invariant):
    """Entry by entry."""

    quantity: ClassVar[Quantity]

    def check(self, a: Anatomy, observation: Observation) -> Iterator[Finding]:
        """The largest deviation of the earliest state dict of each variant that has one."""
        told = set()
        for report, subject, run in subjects(a, observation):
            worst = _worst(subject, self.quantity)
            if worst is None or subject.name in told:
                continue
            told.add(subject.name)
            yield Finding(
                invariant=self.name,
                symptom="mismatch",
                api=a.api,
                detail=_detail(worst),
                variant=variant_name(subject),
                op=worst.op,
                operation=operation(a, worst.op),
                quantity=self.quantity,
                name=worst.name,
                unit=_unit_of(run.at(worst.op), worst.name),
                ranks=(report.rank,),
                world_size=a.case.world_size,
                observed=f"{worst.observed:.9g}",
                expected=f"{worst.expected:.9g}",
                allowed=tolerance(worst),
            )


class StateDictValues(_StateValues):
    """What is saved."""

    name = "state_dict_values"
    summary = "a state dict holds the reference's values"
    wrong = "saves a state dict with wrong values"
    follows = True
    quantity = "state_dict"

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """The entry that the finding names."""
        op = last_state(a, finding.op)
        state = _STATE if op is None else op.named
        absent = op is not None and op.on_rank0(a)
        if op is not None and (gathered := op.gathered(a)) is not None:
            state = gathered
        name = finding.name
        parameter = name in a.by_fqn
        right = call("steps.shards.value", Inside("model", name)) if parameter else held(name)
        return Evidence(
            last=finding.op,
            against="reference",
            loads_state=False,
            seen=(_entries(a, state),),
            right=right,
            judge=judged("entry_off", name, SEEN, RIGHT, bound(finding), absent, Variable("rank")),
        )


class StateDictRoundTrip(_StateValues):
    """What is loaded."""

    name = "state_dict_round_trip"
    summary = "loaded into a model that differs everywhere, it restores every element, no other"
    wrong = "does not restore the state dict that it saved"
    quantity = "reloaded"

    def evidence(self, a: Anatomy, finding: Finding) -> Evidence:
        """The parameter or buffer that the finding names, in both models."""
        name = finding.name
        if name not in a.by_fqn:
            return Evidence(
                last=finding.op,
                seen=(held(name, "loaded"),),
                right=held(name),
                judge=judged("whole_off", f"loaded {name}", SEEN, RIGHT, 0.0),
            )
        new = shard_evidence(a, name, grads=False, model="loaded")
        old = shard_evidence(a, name, grads=False)
        saved = Variable("saved")
        differing = new.differing(f"loaded {name}", saved)
        if finding.op is not None and name in left_alone(a, finding.op):
            before = Do(call=call("torch.full_like", new.seen, UNTOUCHED), into=(saved,))
            judge = (*new.first, before, *differing)
            return Evidence(last=finding.op, seen=new.kept, judge=judge, into=new.into)
        now = (Do(call=v, into=(to,)) for v, to in zip(new.kept, new.into, strict=True))
        judge = (*old.first, Do(call=old.seen, into=(saved,)), *now, *new.first, *differing)
        return Evidence(last=finding.op, seen=old.kept, judge=judge, into=old.into)


def _worst(subject: Subject, quantity: Quantity) -> Comparison | None:
    found = [c for c in subject.comparisons if c.quantity == quantity and broken(c)]
    return max(found, key=lambda c: (-c.op, c.error), default=None)


def _detail(comparison: Comparison) -> str:
    """What sort of deviation it is; ``zero`` is what a load leaves that did nothing."""
    if comparison.missing:
        return f"{comparison.missing}-missing"
    if not comparison.finite:
        return "not-finite"
    # What ``steps/state_dict.py:blank`` puts there before the load.
    return "zero" if comparison.observed in (0.0, UNTOUCHED) else "other"


STATE_DICT = (StateDictKeys(), StateDictValues(), StateDictRoundTrip())


def _entries(a: Anatomy, state: Value) -> Value:
    """A state dict, or its entries where any of it has entries of its own."""
    return call(f"{STEPS}.entries", state) if has_extra_state(a) else state


def _unit_of(a: Anatomy, key: str) -> str | None:
    """The unit that manages a parameter, or in which a buffer lies."""
    return a.owners[key] if key in a.owners else innermost(key, tuple(a.units))

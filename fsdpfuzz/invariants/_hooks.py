"""Rules about hooks that must run, and only when due: offloads, reshards after backward."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpfuzz.invariants._base import Invariant, label, subjects
from fsdpfuzz.observations import Observation
from fsdpfuzz.spec import (
    Backward,
    CaseSpec,
    Forward,
    backward_reshards,
    offload_entries,
    variants,
)
from fsdpfuzz.verdict import Finding


def _offload_entered(case: CaseSpec, observation: Observation) -> Iterator[Finding]:
    forwards = [i for i, op in enumerate(case.program) if isinstance(op, Forward)]
    runs = variants(case)
    told = set()
    for report, subject in subjects(observation):
        if subject.name in told or not subject.saved_on_cpu:
            continue
        due = offload_entries(runs[subject.name], report.rank)
        for op, seen, should in zip(forwards, subject.saved_on_cpu, due, strict=True):
            if seen == should:
                continue
            told.add(subject.name)
            yield Finding(
                invariant="offload_entered",
                symptom="mismatch",
                where=f"{label(subject, case)}:{'more' if seen > should else 'less'}",
                message=f"save_on_cpu was entered {seen} times, but should be {should} times "
                f"[forward program[{op}], rank {report.rank}]",
                observed=str(seen),
                expected=str(should),
                op=op,
            )
            break


def _reshard_count(case: CaseSpec, observation: Observation) -> Iterator[Finding]:
    backwards = [i for i, op in enumerate(case.program) if isinstance(op, Backward)]
    runs = variants(case)
    told = set()
    for report, subject in subjects(observation):
        due = backward_reshards(runs[subject.name], report.rank)
        if subject.name in told or due is None or not subject.backward_reshards:
            continue
        for op, seen, should in zip(backwards, subject.backward_reshards, due, strict=True):
            odd = {
                path: (seen.get(path, 0), int(path in should))
                for path in sorted(should.union(seen))
                if seen.get(path, 0) != (path in should)
            }
            if not odd:
                continue
            told.add(subject.name)
            path, (times, once) = next(iter(odd.items()))
            yield Finding(
                invariant="reshard_count",
                symptom="mismatch",
                where=f"{label(subject, case)}:{'more' if times > once else 'less'}",
                message=f"unit {path!r} was resharded by its own hook {times} times, but should "
                f"be {once} times; {sum(seen.values())} units in all, but should be "
                f"{len(should)} [backward program[{op}], rank {report.rank}]",
                observed=str(times),
                expected=str(once),
                op=op,
            )
            break


HOOKS = (
    Invariant(
        "offload_entered",
        "save_on_cpu is entered once for each call of an offloaded module, and never else",
        _offload_entered,
    ),
    Invariant(
        "reshard_count",
        "each unit that backward reaches is resharded once by its own hook, frozen or not",
        _reshard_count,
    ),
)

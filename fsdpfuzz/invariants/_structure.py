"""Rules about what FSDP does with parameters: freezing, resharding, the wrap plan."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpfuzz.invariants._base import Invariant, label, subjects
from fsdpfuzz.observations import Observation
from fsdpfuzz.spec import CaseSpec, case_places, planned_units, quiet_units, unit_owner, within
from fsdpfuzz.verdict import Finding


def _frozen(case: CaseSpec, observation: Observation) -> Iterator[Finding]:
    for report, subject in subjects(observation):
        for names, what in (
            (subject.frozen_changed, "changed"),
            (subject.frozen_with_grad, "has a gradient"),
        ):
            if names:
                yield Finding(
                    invariant="frozen_untouched",
                    symptom="mismatch",
                    where=f"{label(subject, case)}:{what.replace(' ', '-')}",
                    message=f"frozen parameter {what}, but should not [{names[0]}, rank "
                    f"{report.rank}; {len(names)} in all]",
                    observed=what,
                    expected="untouched",
                )
                return


def _resharded(case: CaseSpec, observation: Observation) -> Iterator[Finding]:
    exempt = _unreached_roots(case)
    for report, subject in subjects(observation):
        for state in subject.unit_states:
            unsharded = [path for path in state.unsharded if path not in exempt]
            if unsharded:
                yield Finding(
                    invariant="resharded_after_backward",
                    symptom="leak",
                    where=label(subject, case),
                    message=f"units {unsharded} are unsharded, but should be sharded "
                    f"[after backward program[{state.op}], rank {report.rank}]",
                    observed="unsharded",
                    expected="sharded",
                )
                return


def _unreached_roots(case: CaseSpec) -> frozenset[str]:
    """Units that may stay unsharded because no backward reaches them.

    Both APIs keep a root whole after forward, since its backward comes next. A unit without
    an enclosing one is its own root; if no parameter in it gets a gradient, its backward may
    never run.
    """
    units = planned_units(case)
    managing = {owner for owner in unit_owner(case).values() if owner is not None}
    loud = managing - set(quiet_units(case, case_places(case)))
    roots = [path for path in units if not any(within(path, u) for u in units if u != path)]
    unreached = [root for root in roots if root and not any(within(path, root) for path in loud)]
    return frozenset(path for path in units if any(within(path, root) for root in unreached))


def _wrapped_as_planned(case: CaseSpec, observation: Observation) -> Iterator[Finding]:
    expected = sorted(planned_units(case))
    for report, subject in subjects(observation):
        if subject.name == "case" and sorted(subject.units) != expected:
            yield Finding(
                invariant="wrapped_as_planned",
                symptom="mismatch",
                where=label(subject, case),
                message=f"units={sorted(subject.units)}, but should be {expected} "
                f"[rank {report.rank}]",
                observed=str(sorted(subject.units)),
                expected=str(expected),
            )
            return


STRUCTURE = (
    Invariant("frozen_untouched", "frozen parameters keep value and get no gradient", _frozen),
    Invariant("resharded_after_backward", "after backward every unit is sharded again", _resharded),
    Invariant(
        "wrapped_as_planned", "FSDP makes the units that the plan names", _wrapped_as_planned
    ),
)

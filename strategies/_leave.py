"""The nearest case off the ground of a known defect."""

from __future__ import annotations

import msgspec

from fsdpfuzz.spec import (
    Backward,
    CaseSpec,
    Forward,
    Fsdp1Plan,
    Op,
    Step,
    case_places,
    features,
    identity_units,
    kept_quiet_units,
    reentrant_scopes,
    single_element_units,
)
from fsdpfuzz.strategies._steer import by_hand, with_plan, without_unit


def accumulates_a_single_element(case: CaseSpec) -> bool:
    """Whether a unit of one element accumulates reduced gradients."""
    if not single_element_units(case, case_places(case)):
        return False
    return without_repeated_reduction(case.program) != case.program


def accumulate_locally(case: CaseSpec) -> CaseSpec:
    """Reduces gradients once for each step."""
    return msgspec.structs.replace(case, program=without_repeated_reduction(case.program))


def without_repeated_reduction(program: tuple[Op, ...]) -> tuple[Op, ...]:
    """The program with ``no_sync`` for every forward but the last before each step."""
    out: list[Op] = []
    later = False
    """Whether a backward follows before the next step."""
    for op in reversed(program):
        if isinstance(op, Step):
            later = False
        if isinstance(op, Forward) and op.grad and later:
            op = msgspec.structs.replace(op, sync=False)
        elif isinstance(op, Forward) and op.grad:
            later = True
        out.append(op)
    return tuple(reversed(out)) if any(isinstance(op, Backward) for op in out) else program


def has_kept_quiet_unit(case: CaseSpec) -> bool:
    """Whether fsdp1 leaves a unit whole after forward that no backward will reach."""
    return bool(kept_quiet_units(case, case_places(case)))


def reshard_quiet_units(case: CaseSpec) -> CaseSpec:
    """Reshards such units after forward."""
    quiet = kept_quiet_units(case, case_places(case))
    plan = case.plan
    if not isinstance(plan, Fsdp1Plan):
        return case
    everywhere = plan.wrap == "module_classes"
    units = tuple(
        msgspec.structs.replace(unit, sharding="FULL_SHARD")
        if everywhere or unit.path in quiet
        else unit
        for unit in plan.units
    )
    return with_plan(case, msgspec.structs.replace(plan, units=units))


def has_cut_reentrant(case: CaseSpec) -> bool:
    """Whether a reentrant checkpoint recomputes part of a unit, or lies in another, or repeats."""
    return any(scope != "whole" for scope in reentrant_scopes(case, case_places(case)).values())


def repeats_reentrant(case: CaseSpec) -> bool:
    """Whether what a reentrant checkpoint recomputes is called several times."""
    return "repeated" in reentrant_scopes(case, case_places(case)).values()


def without_cut_reentrant(case: CaseSpec) -> CaseSpec:
    """Makes those checkpoints non-reentrant."""
    scopes = reentrant_scopes(case, case_places(case))
    return msgspec.structs.replace(
        case,
        checkpoints=tuple(
            msgspec.structs.replace(c, reentrant=False)
            if scopes.get(c.path, "whole") != "whole"
            else c
            for c in case.checkpoints
        ),
    )


def has_identity_unit(case: CaseSpec) -> bool:
    """Whether a unit's module returns its very input."""
    return bool(identity_units(case, case_places(case)))


def without_identity_units(case: CaseSpec) -> CaseSpec:
    """Takes such units out of the plan."""
    paths = identity_units(case, case_places(case))
    if "" in paths:
        return case
    case = with_plan(case, by_hand(case))
    for path in paths:
        case = without_unit(case, path)
    return case


def prefetches_into_recomputed(case: CaseSpec) -> bool:
    """Whether forward prefetch meets a recomputed unit of original parameters, unsharded."""
    plan = case.plan
    return (
        isinstance(plan, Fsdp1Plan)
        and any(unit.sharding == "NO_SHARD" for unit in plan.units)
        and any(unit.use_orig_params for unit in plan.units)
        and any(unit.forward_prefetch for unit in plan.units)
        and features(case)["recomputed_unit"] == "on"
    )


def without_forward_prefetch(case: CaseSpec) -> CaseSpec:
    """No unit prefetches in forward."""
    if not isinstance(case.plan, Fsdp1Plan):
        return case
    units = tuple(msgspec.structs.replace(unit, forward_prefetch=False) for unit in case.plan.units)
    return with_plan(case, msgspec.structs.replace(case.plan, units=units))

"""Known defects of saving, loading and tracking memory, for `GROUND`."""

from __future__ import annotations

import msgspec

from fsdpfuzz.spec import (
    CaseSpec,
    Fsdp1Plan,
    Fsdp1Unit,
    RequiresGrad,
    StateDict,
    case_places,
    planned_units,
    quiet_units,
    unit_of,
)

STATE_GROUND = (
    "fsdp1_offloaded_full_state",
    "fsdp1_local_state_of_originals",
    "fsdp1_no_shard_quiet_unit_state",
)
TRACKER_GROUND = "fsdp2_tracked_idle_unit"


def offloads_full_state(case: CaseSpec) -> bool:
    """Whether fsdp1 offloads a full state dict."""
    return isinstance(case.plan, Fsdp1Plan) and any(
        op.form == "full" and op.cpu_offload for op in case.program if isinstance(op, StateDict)
    )


def without_offload(case: CaseSpec) -> CaseSpec:
    """Full state dicts stay on the device."""
    return msgspec.structs.replace(
        case,
        program=tuple(
            msgspec.structs.replace(op, cpu_offload=False)
            if isinstance(op, StateDict) and op.form == "full"
            else op
            for op in case.program
        ),
    )


def takes_local_state_of_originals(case: CaseSpec) -> bool:
    """Whether fsdp1 saves flat parameters while it shows the original ones."""
    return (
        isinstance(case.plan, Fsdp1Plan)
        and any(unit.use_orig_params for unit in case.plan.units)
        and any(isinstance(op, StateDict) and op.form == "local" for op in case.program)
    )


def with_sharded_state(case: CaseSpec) -> CaseSpec:
    """Local state dicts become sharded ones."""
    return msgspec.structs.replace(
        case,
        program=tuple(
            msgspec.structs.replace(op, form="sharded")
            if isinstance(op, StateDict) and op.form == "local"
            else op
            for op in case.program
        ),
    )


def _unsharded_quiet_units(case: CaseSpec) -> tuple[str, ...]:
    """Units of fsdp1 under ``NO_SHARD`` that show original parameters and get no gradient."""
    return tuple(
        path
        for path in quiet_units(case, case_places(case))
        if isinstance(unit := unit_of(case.plan, path), Fsdp1Unit)
        and unit.use_orig_params
        and unit.sharding == "NO_SHARD"
    )


def needs_unsharded_quiet_unit(case: CaseSpec) -> bool:
    """Whether a state dict is taken, or ``requires_grad`` changed, with such a unit."""
    takes = any(isinstance(op, StateDict | RequiresGrad) for op in case.program)
    return takes and bool(_unsharded_quiet_units(case))


def with_sharded_quiet_units(case: CaseSpec) -> CaseSpec:
    """Shards such units."""
    quiet, plan = _unsharded_quiet_units(case), case.plan
    if not isinstance(plan, Fsdp1Plan):
        return case
    everywhere = plan.wrap == "module_classes"
    units = tuple(
        msgspec.structs.replace(unit, sharding="FULL_SHARD")
        if everywhere or unit.path in quiet
        else unit
        for unit in plan.units
    )
    return msgspec.structs.replace(case, plan=msgspec.structs.replace(plan, units=units))


def idle_units(case: CaseSpec) -> tuple[str, ...]:
    """Paths of the units that are never called."""
    idle = {
        place.path
        for place in case_places(case)
        if place.parameters and not any(parameter.used for parameter in place.parameters)
    }
    return tuple(path for path in planned_units(case) if path in idle)


def tracks_idle_unit(case: CaseSpec) -> bool:
    """Whether memory is tracked with a unit that no forward reaches."""
    return "mem_tracker" in case.probes and bool(idle_units(case))


def untracked(case: CaseSpec) -> CaseSpec:
    """Without the tracker, where a unit is idle."""
    return msgspec.structs.replace(case, probes=()) if tracks_idle_unit(case) else case

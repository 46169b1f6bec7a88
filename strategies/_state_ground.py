"""Known defects of saving, loading and tracking memory, for `GROUND`."""

from __future__ import annotations

import msgspec

from fsdpfuzz.spec import CaseSpec, Fsdp1Plan, StateDict, case_places, planned_units

STATE_GROUND = ("fsdp1_offloaded_full_state", "fsdp1_local_state_of_originals")
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

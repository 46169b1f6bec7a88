"""Known defects of saving and loading, for `GROUND`."""

from __future__ import annotations

import msgspec

from fsdpfuzz.spec import CaseSpec, Fsdp1Plan, StateDict

STATE_GROUND = ("fsdp1_offloaded_full_state", "fsdp1_local_state_of_originals")


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

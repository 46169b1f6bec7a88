"""Known defects of changing paths and ``requires_grad`` on the way, for `GROUND`."""

from __future__ import annotations

import msgspec

from fsdpfuzz.spec import (
    Backward,
    CaseSpec,
    Forward,
    Fsdp1Plan,
    Op,
    RequiresGrad,
    changes_after_lone_forward,
    order_error,
)


def errs_on_originals(case: CaseSpec) -> bool:
    """Whether fsdp1 must name, in the error on the order, parameters that it shows as originals."""
    if not isinstance(case.plan, Fsdp1Plan) or order_error(case) is None:
        return False
    return any(unit.use_orig_params for unit in case.plan.units)


def with_flat_parameters(case: CaseSpec) -> CaseSpec:
    """No unit shows its original parameters."""
    plan = case.plan
    if not isinstance(plan, Fsdp1Plan):
        return case
    units = tuple(msgspec.structs.replace(unit, use_orig_params=False) for unit in plan.units)
    return msgspec.structs.replace(case, plan=msgspec.structs.replace(plan, units=units))


def drops_before_a_change(case: CaseSpec) -> bool:
    """Whether a forward leaves hooks behind and ``requires_grad`` changes next."""
    return (
        case.api == "fsdp1"
        and any(isinstance(op, Forward) and op.drop for op in case.program)
        and changes_after_lone_forward(case)
    )


def without_drops(case: CaseSpec) -> CaseSpec:
    """Forwards whose loss is thrown away record no gradients."""
    return msgspec.structs.replace(
        case,
        program=tuple(
            msgspec.structs.replace(op, drop=False, grad=False)
            if isinstance(op, Forward) and op.drop
            else op
            for op in case.program
        ),
    )


def changes_while_whole(case: CaseSpec) -> bool:
    """Whether ``requires_grad`` changes while a forward has left fsdp2's root whole."""
    return case.api == "fsdp2" and changes_after_lone_forward(case)


def without_lone_forwards(case: CaseSpec) -> CaseSpec:
    """Every forward has its backward, and nothing changes where that has nothing to go through."""
    kept: list[Op] = []
    pending: list[int] = []
    for op in case.program:
        if isinstance(op, Forward) and (op.drop or not op.grad):
            continue
        if isinstance(op, Forward):
            pending.append(len(kept))
        elif isinstance(op, Backward):
            pending.clear()
        kept.append(op)
    program = tuple(op for i, op in enumerate(kept) if i not in pending)
    left = msgspec.structs.replace(case, program=program)
    if not changes_after_lone_forward(left):
        return left
    steady = tuple(op for op in program if not isinstance(op, RequiresGrad))
    return msgspec.structs.replace(case, program=steady)

"""What may happen in a case, as far as the way to write it depends on it."""

from __future__ import annotations

from collections.abc import Sequence

from fsdpfuzz.errors import ContractError
from fsdpfuzz.repro._repeat import waits
from fsdpfuzz.spec import (
    Backward,
    CaseSpec,
    Dense,
    Dropout,
    EncoderLayer,
    Flip,
    Forward,
    Op,
    RequiresGrad,
    Transformer,
    case_places,
    frozen_names,
)


def may_lack_grads(case: CaseSpec) -> bool:
    """Whether a parameter may have no gradient at all."""
    found = case_places(case)
    return (
        may_lack_backward(case)
        or bool(case.frozen)
        or any(place.kind == "switch" for place in found)
        or any(not p.used for place in found for p in place.parameters)
        or any(op.target for op in calls_of(case))
    )


def may_lack_backward(case: CaseSpec) -> bool:
    """Whether a loss might not require grad, so that there is nothing to go back through."""
    if isinstance(case.inputs, Dense) and case.inputs.requires_grad:
        return False
    found = case_places(case)
    used = {p.fqn for place in found for p in place.parameters if p.used}
    changed = {
        name for op in case.program if isinstance(op, RequiresGrad) for name in op.parameters
    }
    changed |= {tie.target for tie in case.ties if tie.source in changed}
    frozen = frozen_names(case) | changed
    if frozen and any(place.kind == "switch" for place in found):
        return True  # what is trained may lie in a branch that is not taken
    return (
        not used - frozen
        or any(c.reentrant for c in case.checkpoints)
        or any(isinstance(op, Flip) for op in case.program)
        or any(op.target for op in calls_of(case))
    )


def drops_out(case: CaseSpec) -> bool:
    """Whether a forward draws random numbers."""
    return any(
        isinstance(place.node, Dropout | EncoderLayer | Transformer)
        and getattr(place.node, "dropout", 1.0) > 0.0
        for place in case_places(case)
    )


def several_pending(program: Sequence[Op]) -> bool:
    pending = most = 0
    for op in program:
        if isinstance(op, Backward):
            pending = 0
        elif isinstance(op, Forward) and waits(op):
            pending += 1
            most = max(most, pending)
    return most > 1


def rows_of(case: CaseSpec) -> int:
    for place in case_places(case):
        rows = getattr(place.node, "rows", None)
        if place.kind in ("embedding", "transformer") and isinstance(rows, int):
            return rows
    raise ContractError("tokens go into a model without an embedding")


def calls_of(case: CaseSpec) -> list[Forward]:
    return [op for op in case.program if isinstance(op, Forward)]

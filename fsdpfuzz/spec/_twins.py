"""What a twin runs, and how close it must come to the case."""

from __future__ import annotations

import msgspec

from fsdpfuzz.spec._case import CaseSpec
from fsdpfuzz.spec._model import Branches, EncoderLayer, Lora, Repeat, Residual, Transformer
from fsdpfuzz.spec._plan import Twin
from fsdpfuzz.spec._program import Backward, Forward, ZeroGrad
from fsdpfuzz.spec._tree import case_places

_OFFLOADS = ("offload", "function_offload")
_FAN_OUT = (Branches, EncoderLayer, Lora, Residual, Transformer)


def variant_of(case: CaseSpec, twin: Twin) -> CaseSpec:
    """The case as a twin runs it."""
    changes = {
        name: value
        for name in ("plan", "checkpoints", "frozen")
        if (value := getattr(twin, name)) is not None
    }
    return msgspec.structs.replace(case, held_out=twin.held_out, twins=(), **changes)


def variants(case: CaseSpec) -> dict[str, CaseSpec]:
    """The case and its twins by the name of their subject, each as it is run."""
    return {"case": case, **{twin.name: variant_of(case, twin) for twin in case.twins}}


def same_arithmetic(case: CaseSpec, twin: Twin) -> bool:
    """Whether the twin computes the same in the same order, so that results must be equal.

    Another plan sums gradients in another order. Other checkpoints do where the gradient of
    one tensor has several terms: of an activation that is used several times, or of a
    parameter of which that holds. A reentrant checkpoint adds to a gradient that is there in
    another order than one backward does. What comes back from an offload lies in memory in another
    layout, for which kernels add in another order.
    """
    if twin.plan is not None and twin.plan != case.plan:
        return False
    if twin.checkpoints is None or twin.checkpoints == case.checkpoints:
        return True
    if any(c.kind in _OFFLOADS for c in (*case.checkpoints, *twin.checkpoints)):
        return False
    if _accumulates(case) and any(c.reentrant for c in (*case.checkpoints, *twin.checkpoints)):
        return False
    found = case_places(case)
    fans = any(isinstance(place.node, _FAN_OUT) for place in found)
    again = any(isinstance(place.node, Repeat) and place.node.times > 1 for place in found)
    return not (fans or again or case.ties or _pending_together(case))


def _accumulates(case: CaseSpec) -> bool:
    """Whether a backward meets gradients of one before."""
    left = False
    for op in case.program:
        if isinstance(op, Backward) and left:
            return True
        if isinstance(op, Backward):
            left = True
        elif isinstance(op, ZeroGrad):
            left = False
    return False


def _pending_together(case: CaseSpec) -> bool:
    pending = 0
    for op in case.program:
        if isinstance(op, Forward) and op.grad and not op.drop:
            pending += 1
        elif isinstance(op, Backward):
            pending = 0
        if pending > 1:
            return True
    return False

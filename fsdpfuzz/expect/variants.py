"""How close a variant must come to its case."""

from __future__ import annotations

from fsdpfuzz.case import (
    Anatomy,
    Branches,
    CaseSpec,
    EncoderLayer,
    Lora,
    Repeat,
    Residual,
    Transformer,
    Variant,
    most_pending,
)
from fsdpfuzz.case.checkpoints import OFFLOADS
from fsdpfuzz.case.modules import Attention, Experts, Keyed, KvReuse

_ATTENTION = (Attention, EncoderLayer, KvReuse, Transformer)
_FAN_OUT = (*_ATTENTION, Branches, Experts, Keyed, Lora, Residual)


def same_arithmetic(a: Anatomy, variant: Variant) -> bool:
    """Whether the variant computes the same in the same order, so that results must be equal.

    Another plan sums gradients in another order. Other checkpoints do where the gradient of
    one tensor has several terms: of an activation that is used several times, or of a
    parameter of which that holds. A reentrant checkpoint adds to a gradient that is there in
    another order than one backward does. What comes back from an offload lies in memory in another
    layout, for which kernels add in another order. Attention has one kernel for parameters that
    are trained and another for frozen ones. Three ranks and more add an element up in an order that
    depends on its place among the others that are reduced with it: on what else is trained.
    """
    case = a.case
    if variant.plan is not None and variant.plan != case.plan:
        return False
    frozen = case.frozen if variant.frozen is None else variant.frozen
    attends = any(isinstance(p.node, _ATTENTION) for p in a.places)
    if frozen != case.frozen and (attends or case.world_size > 2):
        return False
    if a.imported is not None and frozen != case.frozen:
        return False
    if variant.checkpoints is None or variant.checkpoints == case.checkpoints:
        return True
    if a.imported is not None:
        return False  # nobody knows of which tensors gradients have several terms
    if any(c.kind in OFFLOADS for c in (*case.checkpoints, *variant.checkpoints)):
        return False
    if _accumulates(case) and any(c.reentrant for c in (*case.checkpoints, *variant.checkpoints)):
        return False
    fans = any(isinstance(place.node, _FAN_OUT) for place in a.places)
    again = any(isinstance(place.node, Repeat) and place.node.times > 1 for place in a.places)
    return not (fans or again or case.ties or most_pending(case) > 1)


def _accumulates(case: CaseSpec) -> bool:
    """Whether a backward meets gradients of one before."""
    left = False
    for op in case.program:
        if op.gives_gradients and (left or op.goes_back_again):
            return True
        if op.gives_gradients:
            left = True
        elif op.clears_gradients or op.renews:
            left = False
    return False

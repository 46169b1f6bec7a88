"""How many bytes of gradients wait for their reduction: those that no backward has reduced yet."""

from __future__ import annotations

from fsdpfuzz.case import WIDTHS, Anatomy, Backward, Forward, Lowering, ZeroGrad
from fsdpfuzz.expect.bytes import grad_bytes


def waiting_bytes(a: Anatomy, op: int, rank: int) -> int | None:
    """Bytes of gradients of fsdp2, waiting and reduced, after the backward ``op``.

    It adds up whole gradients in ``reduce_dtype``, without one in the dtype that a unit computes
    in. None where it depends on more than the case which gradients there are, and where they are
    reduced over the shards already.
    """
    told = a.case.micro_batches
    if a.fsdp1 or not _all_there(a) or (told is not None and told.all_reduce_only):
        return None
    total = 0
    for owner, parameters in a.at(op).managed.items():
        if owner is None:
            return None
        given = a.at(op).options[owner].precision
        name = given and (given.reduce or given.param)
        total += WIDTHS[name or "float32"] * sum(p.numel for p in parameters)
    return total + (grad_bytes(a.at(op), rank) if _reduced_before(a, op) else 0)


def _all_there(a: Anatomy) -> bool:
    """Whether a backward leaves a gradient of every parameter, and steps clear all of them."""
    return not (a.case.held_out or a.split_ties or Lowering(a).may_lack_grads)


def _reduced_before(a: Anatomy, last: int) -> bool:
    """Whether reduced gradients of an earlier backward are still there."""
    reduced, synchronised = False, True
    for op in a.case.program[:last]:
        if isinstance(op, Forward) and op.waits:
            synchronised = op.sync
        elif isinstance(op, Backward):
            reduced = reduced or synchronised
        elif op.renews or (isinstance(op, ZeroGrad) and op.set_to_none):
            reduced = False
    return reduced

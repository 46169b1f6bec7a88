"""What fsdp2 leaves for later in micro-batches that do not synchronise."""

from __future__ import annotations

from fsdpfuzz.case.micro_batches import MicroBatches
from fsdpfuzz.case.operations.forward import accumulates
from fsdpfuzz.strategies.drawing import Drawing


def draw(d: Drawing) -> None:
    """Where there are any: the all-reduce alone, units kept whole, a backward not the last.

    Shrinks towards nothing but the gradients' reduction.
    """
    if not leaves_for_later(d):
        return
    # Without replicas there is no all-reduce to put off.
    alone, keep, more = d.chance(75), d.chance(30), d.chance(30)
    told = MicroBatches(
        all_reduce_only=alone and d.case.mesh is not None, keep_whole=keep, not_last=more
    )
    if told != MicroBatches():
        d.put(micro_batches=told)


def leaves_for_later(d: Drawing) -> bool:
    """Whether fsdp2 goes through micro-batches that do not synchronise."""
    return not d.a.fsdp1 and accumulates(d.case.program)

"""What fsdp2 leaves for later in micro-batches that do not synchronise."""

from __future__ import annotations

import msgspec

from fsdpfuzz.case import within
from fsdpfuzz.case.micro_batches import MicroBatches
from fsdpfuzz.case.operations.forward import accumulates
from fsdpfuzz.strategies.drawing import Drawing


def draw(d: Drawing) -> None:
    """Where there are any: the all-reduce alone, units kept whole, a backward not the last.

    Of all units, or of some. Shrinks towards nothing but the gradients' reduction.
    """
    if not leaves_for_later(d):
        return
    # Without replicas there is no all-reduce to put off.
    alone, keep, more = d.chance(75), d.chance(30), d.chance(30)
    few, one, which, flags = d.chance(45), d.chance(60), d.between(0, 13), d.mask(14)
    told = MicroBatches(
        all_reduce_only=alone and d.case.mesh is not None, keep_whole=keep, not_last=more
    )
    every = d.a.units
    units = tuple(path for i, path in enumerate(every) if flags[i % 14])
    holding = [u for u in every if any(within(v, u) and v != u for v in every)]
    if one and holding:
        units = (holding[which % len(holding)],)  # and none of those that lie in it
    if few and 0 < len(units) < len(every):
        some = msgspec.structs.replace(told, not_last=False, units=units)
        apart = msgspec.structs.replace(d.case, micro_batches=some)
        # The units of another plan may lie elsewhere.
        if d.accepts(apart):
            d.case = apart
            return
    if told != MicroBatches():
        d.put(micro_batches=told)


def leaves_for_later(d: Drawing) -> bool:
    """Whether fsdp2 goes through micro-batches that do not synchronise."""
    return not d.a.fsdp1 and accumulates(d.case.program)

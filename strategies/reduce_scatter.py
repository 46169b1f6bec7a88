"""How units of fsdp2 reduce and scatter their gradients."""

from __future__ import annotations

from fsdpfuzz.case import Optimizer, anatomy, variants
from fsdpfuzz.case.lacking import may_lack_grads
from fsdpfuzz.case.optimizer import mixes_tensors
from fsdpfuzz.case.reduce_scatter import ReduceScatter, keeps_going, replicates
from fsdpfuzz.strategies.drawing import Drawing


def draw(d: Drawing) -> None:
    """Some or all, none in most draws; zeros for unused parameters go with plain SGD.

    Not in a program that ranks go through apart. Shrinks towards none.
    """
    wanted, unused, more = d.chance(9), d.chance(60), d.chance(60)
    # One choice for both.
    number = d.between(2, 4)
    if d.a.fsdp1 or d.apart or not wanted:
        return
    own = number == 4 and not replicates(d.a)
    told = ReduceScatter(unused=unused, buffers=min(number, 3) if more else 1, own_group=own)
    if told == ReduceScatter():
        return
    runs = (anatomy(run) for run in variants(d.case).values())
    if unused and keeps_going(d.case) and any(map(may_lack_grads, runs)):
        d.put(optimizer=Optimizer(momentum=0.0, foreach=False if mixes_tensors(d.a) else None))
    d.put(reduce_scatter=told)

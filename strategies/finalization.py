"""Who finishes a backward of fsdp2: FSDP, or the program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdpfuzz.case import calls_below_the_root
from fsdpfuzz.case.micro_batches import defers_all_reduce
from fsdpfuzz.strategies.drawing import Drawing

if TYPE_CHECKING:
    from fsdpfuzz.case.finalization import Finalization

_BY_HAND: tuple[Finalization, ...] = ("manual", "async")


def draw(d: Drawing) -> None:
    """Mostly FSDP, else the program in either way. Shrinks towards automatic.

    Not where a part of the model is called on its own, where ranks part, or where an all-reduce is
    deferred.
    """
    wanted, how = d.chance(8), d.pick(_BY_HAND)
    alone = calls_below_the_root(d.case.program)
    if wanted and not (d.a.fsdp1 or d.apart or alone or defers_all_reduce(d.case)):
        d.put(finalization=how)

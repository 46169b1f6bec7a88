"""Who finishes a backward of fsdp2: FSDP, or the program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdpfuzz.case import calls_below_the_root
from fsdpfuzz.case.micro_batches import defers_all_reduce, some_defer
from fsdpfuzz.strategies.drawing import Drawing

if TYPE_CHECKING:
    from fsdpfuzz.case.finalization import Finalization

_BY_HAND: tuple[Finalization, ...] = ("manual", "async")


def draw(d: Drawing) -> None:
    """Mostly FSDP, else the program in either way. Shrinks towards automatic.

    Not where a part of the model is called on its own, where ranks part, where some units, or
    all-reduces alone, are deferred, or where a backward goes back twice or an exception ends it.
    """
    wanted, how = d.chance(8), d.pick(_BY_HAND)
    alone = calls_below_the_root(d.case.program)
    deferred = defers_all_reduce(d.case) or some_defer(d.case)
    other = any(op.goes_back_again or op.starts_over for op in d.case.program)
    if wanted and not (d.a.fsdp1 or d.apart or alone or deferred or other):
        d.put(finalization=how)

"""``set_reshard_after_forward`` of fsdp2, in the midst of a program."""

from __future__ import annotations

import msgspec

from fsdpfuzz.case.operations import SetReshard
from fsdpfuzz.strategies.drawing import Drawing


def draw(d: Drawing) -> None:
    """Once anywhere, also before a backward, and now and then the other way round later on.

    Not of units that a program wraps anew, or that have replicas alone. Shrinks towards none.
    """
    wanted, again, reshard, recurse = d.chance(8), d.chance(40), d.chance(50), not d.chance(30)
    which, places = d.between(0, 63), sorted(d.between(0, 31) for _ in range(2))
    if not wanted or d.a.fsdp1 or d.parting != "never" or not d.trains:
        return
    unit = d.a.units[which % len(d.a.units)]
    for place, value in zip(places, (reshard, not reshard)[: 1 + again], strict=False):
        told = SetReshard(unit=unit, reshard=value, recurse=recurse)
        at, program = place % (len(d.case.program) + 1), d.case.program
        changed = msgspec.structs.replace(d.case, program=(*program[:at], told, *program[at:]))
        if d.accepts(changed):
            d.put(program=changed.program)

"""How forwards leave units, changed in the midst of a program."""

from __future__ import annotations

from fsdpfuzz.case import Fsdp2Unit
from fsdpfuzz.case.operations import SetReshard
from fsdpfuzz.case.units.replicas import is_replica
from fsdpfuzz.strategies.operations.program import Program


def draw(program: Program) -> None:
    """Once in any gap, or once more later on, the other way round; now and then before a backward.

    Not where units are others by then, or have replicas alone. Shrinks towards none.
    """
    d = program.d
    if d.a.fsdp1 or d.parting != "never" or not program.iterations or not d.chance(8):
        return
    unit, reshard, recurse = d.pick(d.a.units), d.chance(50), not d.chance(30)
    within, again = d.chance(20), d.chance(40)
    iteration, at = d.pick(program.iterations), d.between(0, 7)
    gaps = [d.between(0, len(program.gaps) - 1) for _ in range(2)]
    others = any(op.renews for op in program.operations())
    if others or any(isinstance(u, Fsdp2Unit) and is_replica(u) for u in d.a.plan.units):
        return
    told = SetReshard(unit=unit, reshard=reshard, recurse=recurse)
    if within:
        waiting = [i for i, op in enumerate(iteration) if op.waits]
        iteration.insert(waiting[at % len(waiting)] + 1, told)
    else:
        program.gaps[min(gaps)].append(told)
    if again:
        back = SetReshard(unit=unit, reshard=not reshard, recurse=recurse)
        program.gaps[max(gaps)].append(back)

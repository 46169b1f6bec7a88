"""``reset_iter_state`` of fsdp2, after exceptions."""

from __future__ import annotations

from typing import Literal

import msgspec

from fsdpfuzz.case.operations import Op, Unshard
from fsdpfuzz.case.operations.forward import pending_before
from fsdpfuzz.case.operations.interrupt import raising
from fsdpfuzz.case.operations.recover import Recover
from fsdpfuzz.strategies.drawing import Drawing

_WHEN: tuple[Literal["begin", "end", "gradient"], ...] = ("gradient", "gradient", "end", "begin")


def draw(d: Drawing) -> None:
    """One or two before some forward with a backward; most of them in backward.

    Shrinks towards none, then towards one in the backward of the root.
    """
    wanted, twice = d.chance(6), d.chance(15)
    drawn = [(d.between(0, 13), d.between(0, 127), d.pick(_WHEN)) for _ in range(2)]
    if not wanted or d.a.fsdp1 or "" not in d.a.options or d.a.switches:
        return
    modules = raising(d.a)
    for at, which, when in drawn[: 1 + twice] if modules else ():
        program = d.case.program
        waiting = pending_before(program)
        where = [
            i
            for i, (op, waits) in enumerate(zip(program, waiting, strict=True))
            # What is gathered by hand, or was left by an exception, is so for the next forward.
            if op.waits and not waits and not (i and _prepares(program[i - 1]))
        ]
        if where:
            i, module = where[at % len(where)], modules[which % len(modules)]
            recover = Recover(module=module, when=when)
            changed = msgspec.structs.replace(d.case, program=(*program[:i], recover, *program[i:]))
            if d.accepts(changed):
                d.put(program=changed.program)


def _prepares(op: Op) -> bool:
    return op.interrupts or isinstance(op, Unshard)

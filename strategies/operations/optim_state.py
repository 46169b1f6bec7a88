"""The optimizer's state dict between iterations."""

from __future__ import annotations

from typing import Literal

from fsdpfuzz.case import Forward, RequiresGrad, Step, ZeroGrad
from fsdpfuzz.case.operations.optim_state import OptimState, may_lack_state
from fsdpfuzz.strategies.operations.program import Program

_FORMS: tuple[Literal["full", "sharded"], ...] = ("full", "sharded")


def draw(program: Program) -> None:
    """Once or twice, after a step, with any of the options of the API that takes it.

    Shrinks towards none, then towards a full one.
    """
    d = program.d
    if d.parting != "never" or d.a.switches or not d.chance(4, state_dict=20):
        return
    stepped = [
        gap
        for gap, before in zip(program.gaps[1:], program.iterations, strict=True)
        if any(isinstance(op, Step) for op in before)
    ]
    changing = any(isinstance(op, RequiresGrad) for op in program.operations())
    changing = changing or any(isinstance(op, Forward) and op.target for op in program.operations())
    for _ in range(d.between(1, 2) if stepped else 0):
        form, own = d.pick(_FORMS), d.chance(40) and d.a.fsdp1
        offload, broadcast, fresh = d.chance(25), d.chance(25), d.chance(40)
        flatten, lenient, ignore = d.chance(20), d.chance(25), d.chance(15)
        asked = OptimState(
            form=form,
            own=own,
            cpu_offload=offload,
            broadcast=broadcast and form == "full",
            flatten=flatten and not own,
            strict=own or not (lenient or changing or may_lack_state(d.a)),
            ignore_frozen=ignore and not own,
            fresh=fresh,
        )
        d.pick(stepped).extend([ZeroGrad(), asked] if fresh else [asked])

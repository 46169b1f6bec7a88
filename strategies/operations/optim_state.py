"""The optimizer's state dict between iterations."""

from __future__ import annotations

from typing import Literal

from fsdpfuzz.case import Op
from fsdpfuzz.case.operations.average_unmanaged import unmanaged
from fsdpfuzz.case.operations.optim_state import (
    OptimState,
    may_lack_state,
    passes_by_parameters,
)
from fsdpfuzz.case.optimizer import holds_parameters
from fsdpfuzz.strategies.operations.average_unmanaged import ranks_agree
from fsdpfuzz.strategies.operations.program import Program
from fsdpfuzz.strategies.operations.step import gaps_after_a_step
from fsdpfuzz.strategies.operations.zero_grad import TO_NONE

_FORMS: tuple[Literal["full", "sharded"], ...] = ("full", "sharded")


def draw(program: Program) -> None:
    """Once or twice, after a step, with any of the options of the API that takes it.

    Most where it holds more than states of what is trained and sharded: of what no unit manages,
    and with fsdp1 of what was stepped and is frozen, or thawed, by then.

    Shrinks towards none, then towards a full one.
    """
    d = program.d
    together = bool(unmanaged(d.a)) and ranks_agree(program)
    # What is frozen by then the common API refuses (known defects): it would hide the change.
    changed = _after_a_change(program) if d.a.fsdp1 else []
    often = d.chance(65) if together or changed else d.chance(10, state_dict=40)
    if d.parting != "never" or d.a.switches or not often:
        return
    if not holds_parameters(d.a):
        return
    stepped, ops = changed or gaps_after_a_step(program), program.operations()
    changing = passes_by_parameters(ops)
    for _ in range(d.between(1, 2) if stepped else 0):
        # fsdp1's own API loads the state of what is frozen by now, too.
        form, own = d.pick(_FORMS), d.chance(80 if changed else 40) and d.a.fsdp1
        offload, broadcast, fresh = d.chance(25), d.chance(25), d.chance(50)
        flatten, lenient, ignore = d.chance(20), d.chance(25), d.chance(15)
        # A full one that is flattened fsdp2 is known not to load.
        flatten = d.chance(25) and flatten if form == "full" and not d.a.fsdp1 else flatten
        everywhere = form != "full" or not ranks_agree(program)
        asked = OptimState(
            form=form,
            own=own,
            offload=offload and (own or form != "full" or not everywhere),
            broadcast=broadcast and not everywhere,
            flatten=flatten and not own,
            strict=own or not (lenient or changing or may_lack_state(d.a)),
            ignore_frozen=ignore and not own,
            fresh=fresh,
        )
        d.pick(stepped).extend([TO_NONE, asked] if fresh else [asked])


def _after_a_change(program: Program) -> list[list[Op]]:
    """From the gap on in which what is trained changes, once it was stepped."""
    stepped = gaps_after_a_step(program)
    for i, gap in enumerate(stepped):
        if any(op.changes_trained for op in gap):
            return stepped[i:]
    return []

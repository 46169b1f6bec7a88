"""A checkpoint that another model loads."""

from __future__ import annotations

from fsdpfuzz.case.operations.transfer import (
    Into,
    Transfer,
    dies_in_groups,
    refused_into,
    takes_optimizer,
)
from fsdpfuzz.strategies.operations.program import Program
from fsdpfuzz.strategies.operations.rebuild import may_store
from fsdpfuzz.strategies.operations.step import gaps_after_a_step

_INTO: tuple[Into, ...] = ("plain", "fsdp2", "fsdp1", "ddp")


def draw(program: Program) -> None:
    """Once, after a step if there is one. Shrinks towards none, then into a plain model.

    Onto fewer ranks, which load by themselves, in half of the cases; into what ``torch.compile``
    makes of it in a quarter.
    """
    d = program.d
    wanted, into, which = d.chance(5, state_dict=20), d.pick(_INTO), d.between(0, 13)
    few, state = d.chance(50), d.chance(70)
    if not wanted or d.a.imported is not None or not may_store(program):
        return
    stepped = gaps_after_a_step(program)
    gap = d.pick(stepped or program.gaps)
    sizes = [n for n in range(1, d.case.world_size) if d.case.world_size % n == 0]
    whole = program.drawn
    compiled, together = d.chance(25), d.chance(35)
    saved = state and bool(stepped) and takes_optimizer(whole)
    apart = few and bool(sizes) and not dies_in_groups(d.a, into)
    asked = Transfer(
        into="plain" if refused_into(d.a, into) else into,
        ranks=sizes[which % len(sizes)] if apart else None,
        state=saved,
        together=together and saved,
        compiled=compiled,
    )
    gap.append(asked)

"""Gradients that the user drops, of some parameters only."""

from __future__ import annotations

from fsdpfuzz.case import Op
from fsdpfuzz.case.operations.clear_grad import ClearGrad
from fsdpfuzz.case.units.use_orig_params import is_flat
from fsdpfuzz.strategies.operations import state_dict
from fsdpfuzz.strategies.operations.backward import after_reductions
from fsdpfuzz.strategies.operations.forward import MICRO_BATCH
from fsdpfuzz.strategies.operations.program import Program

MANY = 3
"""Parameters of a unit, of which a shard is likely to have several."""


def draw(program: Program) -> None:
    """Between a backward that reduces and what uses the gradients: more of them, or a step.

    Of some parameters of a unit, now and then with all of another one, or of all of a flat one.
    Now and then saved, or followed by one more micro-batch: both show FSDP that they are gone, and
    that one what comes of it. Shrinks towards none, then towards one parameter.
    """
    d = program.d
    original = d.a.fsdp1 and not all(is_flat(d.a, unit) for unit in d.a.units)
    if d.parting != "never" or not d.trains or not d.chance(26 if original else 7):
        return
    where = [(i, at) for i, ops in enumerate(program.iterations) for at in after_reductions(ops)]
    # What an optimizer remembers of earlier steps goes on where a gradient is zero, not None; what
    # is accumulated next may bring back the one that was dropped.
    places = [(i, at) for i, at in where if i] or where
    again = [(i, at) for i, at in where if after_reductions(program.iterations[i])[0] > at]
    i, at = d.pick([*places, *again, *again])
    # The plan may have changed by then; what no unit flattens can go by itself all along.
    groups = {owner: [p.fqn for p in ps if p.used] for owner, ps in d.a.managed.items()}
    owners = [owner for owner, names in groups.items() if names]
    # With orig params what is left of the same shard keeps its gradient, in the same storage.
    owners.sort(key=lambda owner: original and len(groups[owner]) < MANY)
    if not owners or any(op.renews for gap in program.gaps for op in gap):
        return
    owner = d.pick(owners)
    names = groups[owner]
    if is_flat(d.a, owner):
        names = [p.fqn for p in d.a.managed[owner]]
    else:
        *flags, more, beside = d.mask(len(names) + 2)
        one, other = d.pick(names), owners[owners.index(owner) - 1]
        some = [n for n, flag in zip(names, flags, strict=True) if flag and n != one]
        names = some or [one]
        if more and beside and other != owner:
            names = [*names, *(p.fqn for p in d.a.managed[other])]
    cleared: list[Op] = [ClearGrad(parameters=tuple(names))]
    saved, more = d.chance(65 if i else 25), d.chance(25 if i else 60)
    if saved:
        cleared.append(state_dict.FULL)
    if more and (i, at) not in again:
        cleared += MICRO_BATCH
    program.iterations[i][at:at] = cleared

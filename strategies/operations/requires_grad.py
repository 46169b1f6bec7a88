"""Freezing and unfreezing between iterations."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from fsdpfuzz.case import RequiresGrad, anatomy, surely_trains
from fsdpfuzz.case.operations.forward import cut_gradients
from fsdpfuzz.case.units.use_orig_params import is_flat
from fsdpfuzz.strategies.freezing import other_paths
from fsdpfuzz.strategies.operations.program import MAX_ITERATIONS, Program


def draw(program: Program) -> None:
    """The parameters of one unit at a time, all that it manages.

    More often where fsdp1 shows original parameters, of which it has to make out what the flat one
    requires. Shrinks towards none.
    """
    d = program.d
    original = d.a.fsdp1 and not all(is_flat(d.a, unit) for unit in d.a.units)
    often = d.chance(18, fine_tune=60, state_dict=45) if original else d.chance(13, fine_tune=45)
    if d.parting != "never" or not often:
        return
    frozen = set(d.case.frozen)
    groups = [[p.fqn for p in group] for group in d.a.managed.values()]
    used = set(d.a.canonical_names([p.fqn for p in d.a.parameters if p.used]))
    used.difference_update(other_paths(d))  # Nothing ever flips the switch.
    where = d.for_each(len(program.between), MAX_ITERATIONS - 1, lambda: d.chance(70))
    for gap, changes in zip(program.between, where, strict=True):
        if not changes:
            continue
        group = d.pick(groups)
        value = frozen.issuperset(group)
        changed = frozen.difference(group) if value else frozen.union(group)
        # Else the loss would require no grad, and there would be no backward.
        lacks = changed.issuperset(used) or (d.a.numbered and not surely_trains(d.a, changed))
        if lacks and not d.case.inputs.needs_grad():
            continue
        if _cuts(program, changed):
            continue
        frozen = changed
        gap.append(RequiresGrad(parameters=tuple(group), value=value))


def _cuts(program: Program, frozen: Iterable[str]) -> bool:
    """Whether a reentrant checkpoint leaves out gradients while these parameters are frozen.

    Of one in the code of somebody's own nobody knows, so that it may.
    """
    own = program.d.a.imported
    if own is not None and own.reentrant:
        return True
    ops = tuple(program.iterations[0])
    case = msgspec.structs.replace(program.d.case, frozen=tuple(frozen), program=ops)
    return bool(cut_gradients(anatomy(case), plain=True))

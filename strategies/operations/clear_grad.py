"""Gradients that the user drops, of some parameters only."""

from __future__ import annotations

from fsdpfuzz.case import Backward, Forward, Fsdp1Unit, Op, StateDict
from fsdpfuzz.case.operations.clear_grad import ClearGrad
from fsdpfuzz.strategies.operations.program import Program


def draw(program: Program) -> None:
    """Between a backward that reduces and what uses the gradients: more of them, or a step.

    Of some parameters of a unit, or of all of a flat one; before a step now and then saved, which
    shows FSDP that they are gone. Shrinks towards none, then towards one parameter.
    """
    d = program.d
    original = any(getattr(unit, "use_orig_params", False) for unit in d.a.options.values())
    if d.parting != "never" or not d.trains or not d.chance(22 if original else 7):
        return
    where = [(i, at) for i, ops in enumerate(program.iterations) for at in _reduced(ops)]
    i, at = d.pick(where)
    # The plan may have changed by then; what no unit flattens can go by itself all along.
    groups = {owner: [p.fqn for p in ps if p.used] for owner, ps in d.a.managed.items()}
    owners = [owner for owner, names in groups.items() if names]
    if not owners or any(op.renews for gap in program.gaps for op in gap):
        return
    owner = d.pick(owners)
    unit = None if owner is None else d.a.options[owner]
    names = groups[owner]
    if isinstance(unit, Fsdp1Unit) and not unit.use_orig_params:
        names = [p.fqn for p in d.a.managed[owner]]
    else:
        flags, one = d.mask(len(names)), d.pick(names)
        some = [n for n, flag in zip(names, flags, strict=True) if flag and n != one]
        names = some or [one]
    cleared: list[Op] = [ClearGrad(parameters=tuple(names))]
    if d.chance(40):
        cleared.append(StateDict())
    program.iterations[i][at:at] = cleared


def _reduced(ops: list[Op]) -> list[int]:
    """Where in an iteration gradients have just been reduced."""
    found, synchronised = [], True
    for i, op in enumerate(ops):
        if isinstance(op, Forward) and op.waits:
            synchronised = op.sync
        elif isinstance(op, Backward) and synchronised:
            found.append(i + 1)
    return found[::-1]

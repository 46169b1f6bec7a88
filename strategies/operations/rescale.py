"""Parameters that the user scales between iterations."""

from __future__ import annotations

from fsdpfuzz.case.operations import Rescale
from fsdpfuzz.case.units.use_orig_params import is_flat
from fsdpfuzz.strategies.drawing import LOTS
from fsdpfuzz.strategies.operations.forward import evaluates_before_steps
from fsdpfuzz.strategies.operations.program import Program


def draw(program: Program) -> None:
    """Some of what one unit trains, or all that a flat parameter holds, before an iteration.

    Most often into new data, where fsdp1 has to see that. Shrinks towards none, then towards one
    parameter in place.
    """
    d = program.d
    original = d.a.fsdp1 and not all(is_flat(d.a, unit) for unit in d.a.units)
    if d.parting != "never" or not d.trains:
        return
    program.seldom = d.between(0, LOTS - 1)
    if program.seldom < LOTS - (15 if original else 5):
        return
    gap, new_data = d.pick(program.gaps[:-1]), d.chance(60)
    which, flags = d.between(0, 13), d.mask(14)
    # The plan may change on the way, and an evaluation before a step leaves units whole.
    if any(op.renews for each in program.gaps for op in each) or evaluates_before_steps(program):
        return
    if program.lacks_backward:
        return
    frozen = set(d.case.frozen)
    kept = [o for o in d.a.units if d.a.fsdp1 and not is_flat(d.a, o)]
    new_data = new_data and bool(kept)
    groups = {
        owner: [p.fqn for p in ps if p.used]
        for owner, ps in d.a.managed.items()
        if frozen.isdisjoint(p.fqn for p in ps) and (owner in kept or not new_data)
    }
    owners = [owner for owner, names in groups.items() if names]
    if not owners:
        return
    owner = owners[which % len(owners)]
    names = groups[owner]
    if is_flat(d.a, owner):
        names = [p.fqn for p in d.a.managed[owner]]
    else:
        one = names[which % len(names)]
        names = [n for i, n in enumerate(names) if flags[i % 14] or n == one]
    # Before a lone forward, which leaves some units whole.
    gap.insert(0, Rescale(parameters=tuple(names), new_data=new_data))

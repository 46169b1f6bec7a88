"""A training that is saved to disk and taken up again under another plan."""

from __future__ import annotations

from importlib import import_module

import msgspec

from fsdpfuzz.case import OPTIONS, Plan, Rebuild, anatomy, dtypes_fit, foreseen_rejections
from fsdpfuzz.case.operations.forward import calls_below_the_root
from fsdpfuzz.case.operations.rebuild import saves_a_part
from fsdpfuzz.case.operations.requires_grad import freezes_in_part
from fsdpfuzz.case.optimizer import makes_steps
from fsdpfuzz.strategies import wrap
from fsdpfuzz.strategies.drawing import Drawing, all_units
from fsdpfuzz.strategies.operations.average_unmanaged import ranks_agree
from fsdpfuzz.strategies.operations.program import Program


def draw(program: Program) -> None:
    """Once, between two iterations or after the last. Shrinks towards none.

    Seldom before each parameter that is trained has a state.
    """
    d = program.d
    if not may_store(program) or not d.trains or not d.chance(10, state_dict=36):
        return
    own = d.a.imported
    if own is not None and own.wrapped:
        return  # nobody knows how else it is wrapped
    gap, plan = d.pick(program.gaps[1:]), _other_plan(d)
    if calls_below_the_root(program.operations()):
        plan = d.case.plan  # under another one, the module might not be called by itself
    # Of fsdp1 it is known to fail.
    asynchronous = d.chance(12 if d.a.fsdp1 else 25)
    before = program.drawn
    together = d.chance(35) and makes_steps(before)
    gap.append(Rebuild(plan=plan, asynchronous=asynchronous, together=together))
    # What is saved of a part of the optimizer's state is known not to be loaded. And units that are
    # frozen one by one may be parts of one flat parameter then.
    drawn = program.drawn
    if (not d.chance(25) and saves_a_part(drawn)) or freezes_in_part(drawn):
        gap.pop()


def may_store(program: Program) -> bool:
    """Whether a checkpoint on disk may hold all of the model, and each rank has the same."""
    d = program.d
    loses = any(p.node is not None and p.node.loses_state() for p in d.a.places)
    return d.parting == "never" and not d.a.switches and not loses and ranks_agree(program)


def _other_plan(d: Drawing) -> Plan:
    """Any that FSDP takes for what is frozen by now, in dtypes that fit; else the one there is.

    Also where units differ in what another plan would have to give them as well.
    """
    alike = [o.name for o in OPTIONS if not o.free and o.has(d.case.plan.units[0])]
    for name in alike:
        if len({getattr(unit, name) for unit in d.case.plan.units}) > 1:
            return d.case.plan
    # A drawing of its own: what is tried here must not change the case under way.
    bare = msgspec.structs.replace(d.case, program=())
    other = Drawing(d.draw, d.focus, bare, elsewhere=True)
    wrap.draw(other)
    first = d.case.plan.units[0]
    for option in OPTIONS:
        if option.newer:
            continue  # another torch would have another plan for the same seed
        if option.free:
            import_module(f"fsdpfuzz.strategies.units.{option.name}").draw(other)
        elif option.has(first):
            all_units(other, option.name, getattr(first, option.name))
    covered = None not in other.a.owners.values()
    fits = dtypes_fit(other.a) and not foreseen_rejections(anatomy(other.case))
    return other.case.plan if covered and fits else d.case.plan

"""Cases that save and load a state dict, before, between and after training steps."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import strategies as st

from fsdpfuzz.spec import (
    Backward,
    CaseSpec,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Unit,
    Op,
    StateDict,
    Step,
    case_places,
    places,
    unit_owner,
    width_in,
    within,
)
from fsdpfuzz.strategies._cases import cases
from fsdpfuzz.strategies._choose import Draw, between, chance, pick
from fsdpfuzz.strategies._ground import GROUND
from fsdpfuzz.strategies._state_ground import STATE_GROUND

MAX_STATES = 2


def state_dict_cases(
    *,
    apis: Sequence[str] = ("fsdp1", "fsdp2"),
    world_sizes: Sequence[int] = (2,),
    misuse: bool = True,
    avoid: frozenset[str] = frozenset(),
) -> st.SearchStrategy[CaseSpec]:
    """Cases as `cases` draws them, with one or two state dicts in the program.

    Some are taken without any training; there the plan may also ignore modules or leave
    parameters outside all units, which a training run would not average.

    Shrinks towards what `cases` shrinks to, with one full state dict before the first step.
    """
    base = cases(apis=apis, world_sizes=world_sizes, misuse=misuse, avoid=avoid)
    return _state_dict_cases(base, avoid)


@st.composite
def _state_dict_cases(
    draw: Draw, base: st.SearchStrategy[CaseSpec], avoid: frozenset[str]
) -> CaseSpec:
    case = draw(base)
    count = between(draw, 1, MAX_STATES)
    requests = [_request(draw, case) for _ in range(count)]
    if chance(draw, 30):
        case = _loosened(draw, case)
        case = msgspec.structs.replace(case, program=tuple(requests))
    else:
        program = list(case.program)
        for request in requests:
            program.insert(pick(draw, _quiet_places(program)), request)
        case = msgspec.structs.replace(case, program=tuple(program))
    kept = pick(draw, STATE_GROUND) if chance(draw, 4) else ""
    for name in STATE_GROUND:
        if (name != kept or name in avoid) and GROUND[name].holds(case):
            case = GROUND[name].leave(case)
    return case


def _request(draw: Draw, case: CaseSpec) -> StateDict:
    forms = ("full", "sharded", "local") if case.api == "fsdp1" else ("full", "sharded")
    form = pick(draw, forms)
    return StateDict(
        form=form,  # type: ignore[arg-type]
        rank0_only=form == "full" and chance(draw, 25),
        cpu_offload=chance(draw, 25),
    )


def _quiet_places(program: Sequence[Op]) -> list[int]:
    """Where no forward waits for its backward and no gradient for its reduction."""
    found, waiting = [0], False
    for i, op in enumerate(program):
        if isinstance(op, Forward):
            waiting = True
            synchronised = op.sync
        elif isinstance(op, Backward):
            waiting = not synchronised
        if not waiting and isinstance(op, Backward | Step):
            found.append(i + 1)
    return found


def _loosened(draw: Draw, case: CaseSpec) -> CaseSpec:
    """Some units dropped, or modules ignored by the units that hold them."""
    plan = case.plan
    if isinstance(plan, Fsdp1Plan) and plan.wrap != "nested":
        units: list[Fsdp1Unit | Fsdp2Unit] = [plan.units[0]]
    else:
        units = list(plan.units)
        # A tie that only one unit knows of is cut by it.
        if chance(draw, 50) and len(units) > 1 and not case.ties:
            units.pop(between(draw, 0, len(units) - 1))
    if chance(draw, 50):
        i = between(draw, 0, len(units) - 1)
        inner = [
            place.path
            for place in places(case.model, width_in(case))
            if place.path != units[i].path and within(place.path, units[i].path)
        ]
        taken = {unit.path for unit in plan.units}
        inner = [path for path in inner if not any(within(other, path) for other in taken)]
        if inner and not case.ties:
            units[i] = msgspec.structs.replace(units[i], ignored=(pick(draw, inner),))
    if isinstance(plan, Fsdp1Plan) and plan.wrap != "nested":
        units += plan.units[1:]
    changed = msgspec.structs.replace(plan, units=tuple(units))
    loose = msgspec.structs.replace(case, plan=changed)
    managed = any(owner is not None for owner in unit_owner(loose).values())
    return loose if managed and case_places(loose) else case

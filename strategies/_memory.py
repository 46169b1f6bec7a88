"""Cases whose memory is measured."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import strategies as st

from fsdpfuzz.spec import (
    Backward,
    CaseSpec,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Op,
    Optimizer,
    Precision,
    Step,
    ZeroGrad,
    case_places,
)
from fsdpfuzz.strategies._cases import cases
from fsdpfuzz.strategies._choose import Draw, chance, pick
from fsdpfuzz.strategies._state_ground import TRACKER_GROUND, idle_units

MAX_ITERATIONS = 3

_PRECISIONS = (
    None,
    Precision(param="bfloat16", reduce="float32"),
    Precision(param="float16", reduce="float32"),
    Precision(param="bfloat16"),
)


def memory_cases(
    *,
    apis: Sequence[str] = ("fsdp1", "fsdp2"),
    world_sizes: Sequence[int] = (2,),
    misuse: bool = True,
    avoid: frozenset[str] = frozenset(),
) -> st.SearchStrategy[CaseSpec]:
    """Cases as `cases` draws them; about half of fsdp2's run under the memory tracker.

    Those have the root as a unit, plain iterations, and any precision and offload, since
    nothing but memory is compared.

    Shrinks towards what `cases` shrinks to.
    """
    base = cases(apis=apis, world_sizes=world_sizes, misuse=misuse, avoid=avoid)
    return _memory_cases(base, avoid)


@st.composite
def _memory_cases(draw: Draw, base: st.SearchStrategy[CaseSpec], avoid: frozenset[str]) -> CaseSpec:
    case = draw(base)
    if not isinstance(case.plan, Fsdp2Plan) or not chance(draw, 50):
        return case
    # A float32 buffer would turn what lies behind it into float32 too, and matrices would clash.
    plain = not any(place.buffers for place in case_places(case))
    precision, offload = pick(draw, _PRECISIONS if plain else (None,)), chance(draw, 25)
    units = [
        msgspec.structs.replace(unit, precision=precision, cpu_offload=offload)
        for unit in case.plan.units
    ]
    if all(unit.path for unit in units):
        units.append(Fsdp2Unit(path="", precision=precision, cpu_offload=offload))
    iteration: tuple[Op, ...] = (Forward(), Backward(), Step())
    if chance(draw, 60):
        iteration = (*iteration, ZeroGrad())
    if not chance(draw, 3) or TRACKER_GROUND in avoid:
        idle = frozenset(idle_units(case))
        units = [unit for unit in units if unit.path not in idle]
    adam = Optimizer(name="adam", lr=0.01)
    return msgspec.structs.replace(
        case,
        plan=Fsdp2Plan(units=tuple(units)),
        checkpoints=tuple(c for c in case.checkpoints if c.path or c.side == "inside"),
        program=iteration * pick(draw, (1, 2, MAX_ITERATIONS)),
        optimizer=adam if chance(draw, 50) else case.optimizer,
        probes=("mem_tracker",),
    )

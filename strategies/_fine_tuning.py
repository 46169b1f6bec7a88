"""Cases that train a part of the parameters: frozen, held out, unfrozen on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from fsdpfuzz.spec import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp2Plan,
    Gain,
    Op,
    Precision,
    RequiresGrad,
    Step,
    Twin,
    ZeroGrad,
    case_places,
    foreseen_rejections,
    mixed_units,
    unit_owner,
)
from fsdpfuzz.strategies._cases import cases, off_ground
from fsdpfuzz.strategies._choose import Draw, between, chance, mask, pick
from fsdpfuzz.strategies._ground import GROUND

MAX_ITERATIONS = 3
_PRECISIONS = ("bfloat16", "float16")


def fine_tune_cases(
    *,
    apis: Sequence[str] = ("fsdp1", "fsdp2"),
    world_sizes: Sequence[int] = (2,),
    misuse: bool = True,
    avoid: frozenset[str] = frozenset(),
) -> st.SearchStrategy[CaseSpec]:
    """Cases as `cases` draws them, with whole units frozen and a program that may change that.

    Most have a twin in which the frozen parameters are trainable and held out of the
    optimizer; in the others parameters are frozen or unfrozen between iterations. Forwards
    without gradient lie in between, and about a third computes in half precision.

    Shrinks towards what `cases` shrinks to, nothing frozen.
    """
    bases = [
        cases(apis=apis, world_sizes=world_sizes, misuse=wrong, avoid=avoid)
        for wrong in ((False, misuse) if misuse else (False,))
    ]
    return _fine_tune_cases(st.one_of(bases), frozenset(GROUND) - avoid)


@st.composite
def _fine_tune_cases(
    draw: Draw, base: st.SearchStrategy[CaseSpec], ground: frozenset[str]
) -> CaseSpec:
    case = _without_reentrant(draw(base))
    half, inputs_grad, opened = chance(draw, 30), chance(draw, 40), chance(draw, 6)
    case = _frozen_units(draw, case)
    changes = chance(draw, 40)
    program = _program(draw, case, changes)
    case = msgspec.structs.replace(case, program=program)
    if isinstance(case.inputs, Dense) and inputs_grad:
        data = msgspec.structs.replace(case.inputs, requires_grad=True)
        case = msgspec.structs.replace(case, inputs=data)
    if half:
        case = _in_half(draw, case)
    if foreseen_rejections(case):
        return case
    case = off_ground(case, ground if opened else frozenset())
    if case.frozen and not changes and not mixed_units(case):
        twin = Twin(name="held_out", frozen=(), held_out=case.frozen)
        case = msgspec.structs.replace(case, twins=(twin,))
    return case


def _without_reentrant(case: CaseSpec) -> CaseSpec:
    """Reentrant checkpointing gives no gradient where nothing before it is trained."""
    checkpoints = tuple(msgspec.structs.replace(c, reentrant=False) for c in case.checkpoints)
    return msgspec.structs.replace(case, checkpoints=checkpoints)


def _frozen_units(draw: Draw, case: CaseSpec) -> CaseSpec:
    """Freezes whole units, where the case freezes nothing yet and has several."""
    groups = _groups(case)
    chosen = mask(draw, len(groups))
    if case.frozen or all(chosen) or len(groups) < 2:
        return case
    frozen = tuple(fqn for held, names in zip(chosen, groups, strict=True) for fqn in names if held)
    if not frozen and chance(draw, 80):
        frozen = tuple(groups[0])
    return msgspec.structs.replace(case, frozen=frozen)


def _groups(case: CaseSpec) -> list[list[str]]:
    """The parameters of each unit, tied ones once."""
    targets = {tie.target for tie in case.ties}
    groups: dict[str | None, list[str]] = {}
    for fqn, owner in unit_owner(case).items():
        if fqn not in targets:
            groups.setdefault(owner, []).append(fqn)
    return list(groups.values())


def _program(draw: Draw, case: CaseSpec, changes: bool) -> tuple[Op, ...]:
    """Iterations, with forwards without gradient and changes of ``requires_grad`` between."""
    frozen = set(case.frozen)
    step = (Forward(), Backward(), Step(), ZeroGrad())
    operations: list[Op] = list(step[:3])
    for _ in range(between(draw, 0, MAX_ITERATIONS - 1)):
        operations.append(ZeroGrad())
        if chance(draw, 30):
            operations.append(Forward(grad=False))
        group = pick(draw, _groups(case))
        if changes:
            value = frozen.issuperset(group)
            operations.append(RequiresGrad(parameters=tuple(group), value=value))
            frozen = frozen.difference(group) if value else frozen.union(group)
        operations += step[:3]
    return tuple(operations)


def _in_half(draw: Draw, case: CaseSpec) -> CaseSpec:
    """All units compute in half precision.

    A buffer would have to be cast as well, and then differ from the reference's by that. The
    gradient of a gain is a sum over all that it scales, which may cancel but for rounding.
    """
    if any(place.buffers or isinstance(place.node, Gain) for place in case_places(case)):
        return case
    name: Any = pick(draw, _PRECISIONS)
    reduce: Any = pick(draw, (None, "float32"))
    precision = Precision(param=name, reduce=reduce)
    if isinstance(case.plan, Fsdp1Plan):
        return msgspec.structs.replace(case, plan=_with(case.plan, precision))
    units = tuple(msgspec.structs.replace(unit, precision=precision) for unit in case.plan.units)
    return msgspec.structs.replace(case, plan=Fsdp2Plan(units=units))


def _with(plan: Fsdp1Plan, precision: Precision) -> Fsdp1Plan:
    units = tuple(msgspec.structs.replace(unit, precision=precision) for unit in plan.units)
    return msgspec.structs.replace(plan, units=units)

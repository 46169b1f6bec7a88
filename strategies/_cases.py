"""Whole cases: all parts drawn in the order in which they depend on each other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import msgspec
from hypothesis import strategies as st

from fsdpfuzz.errors import UsageError
from fsdpfuzz.spec import (
    CaseSpec,
    Checkpoint,
    Dense,
    Fsdp1Plan,
    Gain,
    Node,
    Plan,
    Sequential,
    case_places,
    owners_among,
    places,
    units_among,
    width_in,
)
from fsdpfuzz.strategies import _steer as steer
from fsdpfuzz.strategies._checkpoints import checkpoint_placements
from fsdpfuzz.strategies._choose import LOTS, Draw, between, chance, pick
from fsdpfuzz.strategies._freeze import freeze_masks, ties
from fsdpfuzz.strategies._ground import GROUND, MISUSE, Ground
from fsdpfuzz.strategies._plans import fsdp1_plans, fsdp2_plans
from fsdpfuzz.strategies._programs import inputs, optimizers, programs
from fsdpfuzz.strategies._trees import module_trees

_MISUSES = 8
"""Of `LOTS` draws so many are documented misuse, and one is for each known ground to seek."""
_OPEN = 10
"""Of `LOTS` draws so many need not keep off the known ground that they meet by themselves."""


def cases(
    *,
    apis: Sequence[str] = ("fsdp1", "fsdp2"),
    world_sizes: Sequence[int] = (2,),
    misuse: bool = True,
    avoid: frozenset[str] = frozenset(),
) -> st.SearchStrategy[CaseSpec]:
    """Cases of the given APIs and world sizes, which ``fsdpfuzz.spec.check`` accepts.

    About one draw in sixteen asks for something that FSDP documents to refuse (see
    ``MISUSE``), none with ``misuse=False``. About as many may stand on the ground of a known
    defect (see ``GROUND``), less what ``avoid`` names; the others keep off it.

    Shrinks towards one ``Linear(out=1, bias=False)`` on inputs of shape ``(1, 1)``, the
    first API and world size, the root as the only unit with PyTorch's defaults, one
    forward, backward and step of SGD.

    Raises :class:`UsageError` for an API, a world size or a name in ``avoid`` that is unknown.
    """
    if not apis or not set(apis) <= {"fsdp1", "fsdp2"}:
        raise UsageError(f"apis={list(apis)}: name fsdp1, fsdp2 or both")
    if not world_sizes or not all(1 <= size <= 8 for size in world_sizes):
        raise UsageError(f"world_sizes={list(world_sizes)}: name sizes from 1 to 8")
    if unknown := avoid - GROUND.keys():
        raise UsageError(f"avoid={sorted(unknown)}: the known names are {', '.join(GROUND)}")
    return _cases(tuple(apis), tuple(world_sizes), misuse, avoid)


@st.composite
def _cases(
    draw: Draw,
    apis: tuple[str, ...],
    world_sizes: tuple[int, ...],
    misuse: bool,
    avoid: frozenset[str],
) -> CaseSpec:
    api, world_size = pick(draw, apis), pick(draw, world_sizes)
    open_to, ground = _detour(draw, api, misuse, avoid)
    needs = ground.needs if ground else ""
    data = draw(inputs())
    width = data.width if isinstance(data, Dense) else 0
    square = chance(draw, 19) or needs == "tie"
    model = draw(module_trees(width, square=square))
    if needs == "scalar":
        model = _appended(model, Gain(scalar=True))
    tied = draw(ties(model, width, at_least=1 if needs == "tie" else 0))
    plan: Plan
    if api == "fsdp1":
        plan = draw(fsdp1_plans(model, width))
    else:
        plan = draw(fsdp2_plans(model, width, world_size=world_size))
    case = CaseSpec(
        world_size=world_size, model=model, inputs=data, plan=plan, ties=tied, program=()
    )
    if needs == "tie" and ground:
        case = ground.enter(draw, case)
    case = _off_ties(case, open_to)
    case = _with_rest(draw, case)
    if ground and needs != "tie":
        case = ground.enter(draw, case)
    case = off_ground(case, open_to)
    if None in owners_among(case_places(case), case.plan).values():
        case = steer.wrap_root(case)  # FSDP does not synchronise what no unit manages
    return case


def off_ground(case: CaseSpec, open_to: frozenset[str] = frozenset()) -> CaseSpec:
    """Leaves the ground that is not open; leaving one kind can put a case on another."""
    for _ in range(len(_grounds(case.api))):
        before = case
        for name, ground in _grounds(case.api):
            if name not in open_to and ground.holds(case):
                case = ground.leave(case)
        if case == before:
            break
    return case


def _detour(
    draw: Draw, api: str, misuse: bool, avoid: frozenset[str]
) -> tuple[frozenset[str], Ground | None]:
    """The ground that this draw need not keep off, and the one that it enters on purpose."""
    lot = LOTS - 1 - between(draw, 0, LOTS - 1)
    entered, met = _ground_names(api, avoid)
    if lot < len(entered):
        return frozenset(entered[lot : lot + 1]), GROUND[entered[lot]]
    if misuse and lot < len(entered) + _MISUSES:
        name = pick(draw, _misuse_names(api))
        return frozenset((name,)), MISUSE[name]
    if lot < len(entered) + _MISUSES + _OPEN:
        return frozenset(met), None
    return frozenset(), None


@cache
def _ground_names(api: str, avoid: frozenset[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Known ground that draws have to seek, and ground that they meet by themselves."""
    names = [name for name in GROUND if name.startswith(api) and name not in avoid]
    sought = tuple(name for name in names if GROUND[name].needs)
    return sought, tuple(name for name in names if name not in sought)


@cache
def _misuse_names(api: str) -> tuple[str, ...]:
    return tuple(name for name in MISUSE if name.startswith(api))


@cache
def _grounds(api: str) -> tuple[tuple[str, Ground], ...]:
    # Misuse last: leaving known ground can put frozen and trained parameters together.
    every = {**GROUND, **MISUSE}
    return tuple((name, ground) for name, ground in every.items() if name.startswith(api))


def _off_ties(case: CaseSpec, open_to: frozenset[str]) -> CaseSpec:
    """Joins split ties before the rest depends on the units, unless that is the detour."""
    for name, ground in _grounds(case.api):
        if name not in open_to and ground.needs == "tie" and ground.holds(case):
            case = ground.leave(case)
    return case


def _with_rest(draw: Draw, case: CaseSpec) -> CaseSpec:
    """Freezing, checkpoints, program and optimizer of a case that has its plan."""
    model, width, data = case.model, width_in(case), case.inputs
    found = places(model, width)
    wants_grad = isinstance(data, Dense) and data.requires_grad
    frozen = draw(
        freeze_masks(
            model,
            width,
            ties=case.ties,
            owners=owners_among(found, case.plan),
            everything=wants_grad,
            whole_units=isinstance(case.plan, Fsdp1Plan) and not case.plan.units[0].use_orig_params,
        )
    )
    checkpoints = draw(
        checkpoint_placements(model, width, units=units_among(found, case.plan), frozen=frozen)
    )
    if isinstance(data, Dense) and any(checkpoint.reentrant for checkpoint in checkpoints):
        data = msgspec.structs.replace(data, requires_grad=True)
    return msgspec.structs.replace(
        case,
        inputs=data,
        frozen=frozen,
        checkpoints=around_a_found_root(case, checkpoints),
        program=draw(programs()),
        optimizer=draw(optimizers()),
        seed=between(draw, 0, LOTS - 1),
    )


def around_a_found_root(
    case: CaseSpec, checkpoints: tuple[Checkpoint, ...]
) -> tuple[Checkpoint, ...]:
    """Classes would find the root once more, inside of what is around it."""
    if case_places(case)[0].kind not in getattr(case.plan, "classes", ()):
        return checkpoints
    return tuple(
        checkpoint if checkpoint.path else msgspec.structs.replace(checkpoint, side="around")
        for checkpoint in checkpoints
    )


def _appended(model: Node, node: Node) -> Node:
    children = model.children if isinstance(model, Sequential) else (model,)
    return Sequential(children=(*children, node))

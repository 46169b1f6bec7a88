"""The one space of cases, and the order in which its dimensions are drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import get_args

import msgspec
from hypothesis import strategies as st

from fsdpfuzz.case import (
    APIS,
    DIMENSIONS,
    MAX_RANKS,
    Api,
    CaseSpec,
    Dense,
    Dimension,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Given,
    Imported,
    Linear,
    Option,
    Plan,
    Tie,
    written,
)
from fsdpfuzz.case.mesh import own_mesh
from fsdpfuzz.errors import ContractError, UsageError
from fsdpfuzz.strategies.drawing import Draw, Drawing, Focus, choosing

FOCUSES: tuple[Focus, ...] = get_args(Focus)
"""What drawing can look at most: the properties."""
_HERE = "fsdpfuzz.strategies"

Part = Callable[[Drawing], None]
_AROUND_A_PLAN = ("program", "optimizer")
"""What is drawn for a model that its own code wraps."""


def cases(
    *,
    focus: Focus = "parity",
    apis: Sequence[str] = ("fsdp1", "fsdp2"),
    world_sizes: Sequence[int] = (2,),
    offers: Sequence[str] = (),
    model: Imported | None = None,
    plan: Plan | None = None,
    around: bool = False,
    words: Sequence[str] = (),
) -> st.SearchStrategy[CaseSpec]:
    """Cases of the given APIs and world sizes, which ``fsdpfuzz.case.check`` accepts.

    All dimensions are drawn together, whatever the ``focus``; those that not every torch has only
    where ``offers`` names what they need of `fsdpfuzz.case.NEWER`. Some cases ask for what FSDP
    documents to refuse, and some can show what is known of it: `fsdpfuzz.loop` runs few of these.
    With a ``model`` of somebody's own all of them train that one: its inputs, its structure and
    its loss are what they are. With a ``plan``, too, it is wrapped and frozen as its own code does
    it: programs and optimizers are drawn, and with ``around`` a change or two of the rest.
    ``words`` are its own program, in those of `fsdpfuzz.case.WRITTEN`: all that is trained where
    only the plan is given, else half of what is.

    Shrinks towards one ``Linear(out=1, bias=False)`` on inputs of shape ``(1, 1)``, the first
    API and world size, the root as the only unit with PyTorch's defaults, one forward, backward
    and step of SGD.

    Raises :class:`UsageError` for a focus, an API or a world size that is unknown.
    """
    if focus not in FOCUSES:
        raise UsageError(f"focus={focus!r}: name one of {', '.join(FOCUSES)}")
    if not apis or not set(apis) <= {"fsdp1", "fsdp2"}:
        raise UsageError(f"apis={list(apis)}: name fsdp1, fsdp2 or both")
    if not world_sizes or not all(1 <= size <= MAX_RANKS for size in world_sizes):
        raise UsageError(f"world_sizes={list(world_sizes)}: name sizes from 1 to {MAX_RANKS}")
    under_way: list[Drawing] = []
    parts = [
        (dimension, _span(dimension.name, part, under_way))
        for dimension, part in _parts()
        if (model is None or not dimension.of_model)
        and (plan is None or dimension.name in _AROUND_A_PLAN)
    ]
    if plan is not None and around:
        # Before the program, which is drawn for the plan that comes of it.
        parts.insert(0, (parts[0][0], _span("around", part_named("around"), under_way)))
    own = _Written(tuple(words), always=plan is not None and not around)
    known = [api for api in APIS if api in apis]
    starts = {(api, n): _simplest(api, n, model, plan) for api in known for n in world_sizes}
    sizes, torch = tuple(world_sizes), frozenset(offers)
    return _cases(focus, tuple(apis), sizes, torch, starts, parts, under_way, own)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class _Written:
    """A program of somebody's own."""

    words: tuple[str, ...]
    always: bool
    """Else in half of the draws."""

    def put(self, d: Drawing) -> None:
        """In place of what was drawn, where it is sound under the plan."""
        own = d.a.imported
        if own is None or not (self.always or d.chance(50)):
            return
        program = written(self.words, d.case.plan, clips=own.clips)
        if d.accepts(msgspec.structs.replace(d.case, program=program)):
            d.put(program=program)


@st.composite
def _cases(
    draw: Draw,
    focus: Focus,
    apis: tuple[Api, ...],
    world_sizes: tuple[int, ...],
    offers: frozenset[str],
    starts: Mapping[tuple[str, int], CaseSpec],
    parts: Sequence[tuple[Dimension, st.SearchStrategy[None]]],
    under_way: list[Drawing],
    own: _Written,
) -> CaseSpec:
    d = Drawing(draw, focus, next(iter(starts.values())))
    # First of all: everything else is drawn for an API and a number of ranks.
    d.case = starts[d.pick(apis), d.pick(world_sizes)]
    under_way[:] = [d]
    for dimension, span in parts:
        before = d.case
        draw(span)
        # Drawn all the same, so that a seed gives like cases on every torch.
        if dimension.asked(d.a) and not offers.issuperset(dimension.newer):
            d.case = before
        if own.words and dimension.name == "program":
            d.draw = draw
            own.put(d)
    d.draw = draw
    # Last, where it shifts no other choice when a case shrinks.
    d.put(seed=d.between(0, 127))
    return d.case


@st.composite
def _span(draw: Draw, name: str, part: Part, under_way: Sequence[Drawing]) -> None:
    """A dimension's choices in one span, so that Hypothesis can set all of them back at once.

    Made once for each strategy and not for each draw, of which it would be a quarter of the time;
    so it finds the case in ``under_way``.
    """
    (d,) = under_way
    d.draw = draw
    with choosing(name):
        part(d)


def _simplest(api: Api, world_size: int, own: Imported | None, wrapped: Plan | None) -> CaseSpec:
    plan = (
        Fsdp1Plan(units=(Fsdp1Unit(path=""),))
        if api == "fsdp1"
        else Fsdp2Plan(units=(Fsdp2Unit(path=""),))
    )
    if own is not None:
        return CaseSpec(
            world_size=world_size,
            model=own,
            mesh=own_mesh(own) if wrapped is not None else None,
            inputs=Given(),
            plan=wrapped or plan,
            frozen=own.own_frozen if wrapped is not None else (),
            program=(),
            ties=tuple(Tie(source=source, target=target) for source, target in own.ties),
            loss="projection" if own.loss == "all" else "own",
        )
    model, data = Linear(out=1, bias=False), Dense(width=1, batch=1)
    return CaseSpec(world_size=world_size, model=model, inputs=data, plan=plan, program=())


@cache
def _parts() -> tuple[tuple[Dimension, Part], ...]:
    """How each dimension is drawn, in their order. :class:`ContractError` if one lacks a file."""
    return tuple((dimension, part_of(dimension)) for dimension in DIMENSIONS if dimension.drawn)


def part_of(dimension: Dimension) -> Part:
    """The ``draw`` in the file that has the dimension's name."""
    room = "units." if isinstance(dimension, Option) else ""
    return part_named(f"{room}{dimension.name}")


def part_named(name: str) -> Part:
    """The ``draw`` in a file of this folder; :class:`ContractError` without one."""
    try:
        part: Part = import_module(f"{_HERE}.{name}").draw
    except (ModuleNotFoundError, AttributeError):
        raise ContractError(f"strategies/{name.replace('.', '/')}.py has no draw()") from None
    return part

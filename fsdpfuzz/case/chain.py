"""A chain of layers, each of which may be a unit: the case in which nothing is unusual."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fsdpfuzz.case.inputs import Dense
from fsdpfuzz.case.modules import Linear, Sequential
from fsdpfuzz.case.operations import Backward, Forward, Op, Step
from fsdpfuzz.case.spec import CaseSpec
from fsdpfuzz.case.wrap import Fsdp1Plan, Fsdp1Unit, Fsdp2Plan, Fsdp2Unit, Plan

ITERATION: tuple[Op, ...] = (Forward(), Backward(), Step())


def chain(
    api: str, widths: Sequence[int], units: Iterable[int], world_size: int, program: tuple[Op, ...]
) -> CaseSpec:
    """``Linear`` from each width to the next; the root and the layers ``units`` are units."""
    paths = ("", *map(str, units))
    plans: dict[str, Plan] = {
        "fsdp1": Fsdp1Plan(units=tuple(Fsdp1Unit(path=path) for path in paths)),
        "fsdp2": Fsdp2Plan(units=tuple(Fsdp2Unit(path=path) for path in paths)),
    }
    width, *outs = widths
    return CaseSpec(
        world_size=world_size,
        model=Sequential(children=tuple(Linear(out=out) for out in outs)),
        inputs=Dense(width=width),
        plan=plans[api],
        program=program,
    )

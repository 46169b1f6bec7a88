"""Precision beside what goes wrong in it: buffers, and gradients that are added up."""

from __future__ import annotations

from typing import Any

import pytest

from fsdpfuzz.case import (
    Anatomy,
    CaseSpec,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Plan,
    Precision,
    Sequential,
    anatomy,
    cast_buffer,
    innermost,
    is_sound,
)
from fsdpfuzz.strategies import cases
from fsdpfuzz.strategies.drawing import Drawing
from fsdpfuzz.strategies.units import precision
from tests.unit.case.test_units import make
from tests.unit.strategies.minimal import minimal, shrinks_to
from tests.unit.strategies.sample import everything, features_of, sample


def policies(case: CaseSpec) -> list[Precision]:
    return [unit.precision for unit in case.plan.units if unit.precision is not None]


def buffers(case: CaseSpec) -> list[str]:
    return [f"{place.path}.{name}" for place in anatomy(case).places for name in place.buffers]


def _computes_low(a: Anatomy, path: str) -> bool:
    """Whether the unit that a module lies in computes in a lower dtype."""
    unit = innermost(path, a.unit_at)
    return unit is not None and a.options[a.unit_at[unit]].precision is not None


def test_it_is_drawn_in_about_a_tenth_of_the_cases() -> None:
    found = sample("parity").cases
    assert 0.04 < sum(bool(policies(case)) for case in found) / len(found) < 0.16


def test_buffers_are_cast_as_parameters_are() -> None:
    found = [case for case in everything() if policies(case)]
    cast = [case for case in found if any(policy.buffer for policy in policies(case))]
    assert len(cast) > 20
    assert all(map(is_sound, cast))
    assert all(policy.buffer == policy.param for case in cast for policy in policies(case))
    assert all(case in cast for case in found if buffers(case) and case.api == "fsdp1")
    beside = [anatomy(case) for case in found if buffers(case) and case.api == "fsdp2"]
    assert len(beside) > 20
    low = [p for a in beside for p in a.places if p.buffers and _computes_low(a, p.path)]
    assert not low, "fsdp2 casts no buffers"
    plain = [c for c in cast if not anatomy(c).kept_out and c.program]
    case = next(c for c in plain if features_of(c)["lone_forward"] == "no")
    names = {cast_buffer(anatomy(case), name) for name in buffers(case)}
    assert names == {policies(case)[0].param}


def test_gradients_are_added_up_in_a_wider_dtype() -> None:
    def accumulates(case: CaseSpec) -> bool:
        wide = any(policy.reduce for policy in policies(case))
        return wide and features_of(case)["accumulation"] == "no_sync"

    found = [case for case in everything() if accumulates(case)]
    assert {case.api for case in found} == {"fsdp1", "fsdp2"}
    assert len(found) > 0.005 * len(everything())
    program = ["forward", "backward"] * 2 + ["step"]
    shrinks_to(lambda case: [op.kind() for op in case.program] == program, cases(), accumulates)
    assert minimal(cases()).plan.units[0].precision is None


@pytest.mark.parametrize(
    "plan",
    [Fsdp1Plan(units=(Fsdp1Unit(path="0"),)), Fsdp2Plan(units=(Fsdp2Unit(path="0"),))],
)
@pytest.mark.parametrize("layers", [1, 2])
def test_a_layer_in_no_unit_takes_float32_alone(plan: Plan, layers: int) -> None:
    """Two layers are one unit and one in none: as no training has it, but saving."""
    lots = iter((1, 0, 0, 0))

    def draw(strategy: Any, label: object = None) -> Any:
        return next(lots)

    d = Drawing(draw, "parity", make(plan, model=Sequential(children=(Linear(out=2),) * layers)))
    precision.draw(d)
    assert next(lots, None) is None
    assert bool(policies(d.case)) == (layers == 1)

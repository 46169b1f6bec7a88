"""What a failure does not need goes off; without any condition the documented minimum is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from fsdpfuzz.case import (
    DIMENSIONS,
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Plan,
    Step,
    anatomy,
    case_features,
)
from fsdpfuzz.reduce import reduce
from fsdpfuzz.reduce.neighbours import plainest
from fsdpfuzz.strategies import FOCUSES, cases
from fsdpfuzz.strategies.drawing import Focus
from fsdpfuzz.verdict import Finding
from tests.unit.strategies.minimal import minimal, shrinks_to

ONCE = (Forward(), Backward(), Step())
PLANS: dict[str, Plan] = {
    "fsdp1": Fsdp1Plan(units=(Fsdp1Unit(path=""),)),
    "fsdp2": Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
}
SIMPLEST: dict[str, CaseSpec] = {
    api: CaseSpec(
        world_size=2,
        model=Linear(out=1, bias=False),
        inputs=Dense(width=1, batch=1),
        plan=plan,
        program=ONCE,
    )
    for api, plan in PLANS.items()
}


@pytest.mark.parametrize("api", ["fsdp1", "fsdp2"])
@pytest.mark.parametrize("focus", ["parity", "memory", "fine_tune"])
def test_without_a_condition_the_documented_minimum_is_left(focus: Focus, api: str) -> None:
    assert minimal(cases(focus=focus, apis=(api,), world_sizes=(2, 3))) == SIMPLEST[api]


def test_what_a_focus_looks_at_most_may_be_left() -> None:
    for focus in FOCUSES:
        case = minimal(cases(focus=focus, world_sizes=(2, 3)))
        assert size(case) == 1
        assert (case.world_size, case.seed, case.frozen, case.ties) == (2, 0, (), ())


def has(name: str, *values: str) -> Callable[[CaseSpec], bool]:
    """Whether a feature has one of some values."""
    return lambda case: case_features(anatomy(case)).get(name) in values


@dataclass(frozen=True, slots=True)
class Wanted:
    """A condition, and what the simplest case for which it holds may have."""

    focus: Focus
    api: str
    holds: Callable[[CaseSpec], Any]
    needs: tuple[str, ...] = ()
    """The dimensions that the condition speaks of; all others are plain."""
    modules: int = 1
    """How many modules may have parameters."""
    operations: int = 3
    steps: int = 1
    trains: bool = True
    """Whether the failure shows only where something is trained."""
    start: int = 0
    """Where Hypothesis begins."""


WANTED: dict[str, Wanted] = {
    "sharding": Wanted("parity", "fsdp1", has("sharding", "NO_SHARD"), ("sharding",), start=1),
    "use_orig_params": Wanted(
        "parity", "fsdp1", has("use_orig_params", "on"), ("use_orig_params",)
    ),
    "backward_prefetch": Wanted(
        "parity", "fsdp1", has("backward_prefetch", "BACKWARD_POST"), ("backward_prefetch",)
    ),
    "reshard_after_forward": Wanted(
        "parity", "fsdp2", has("reshard_after_forward", "off"), ("reshard_after_forward",)
    ),
    "precision": Wanted("fine_tune", "fsdp2", has("precision", "on"), ("precision",)),
    "cpu_offload": Wanted("memory", "fsdp2", has("cpu_offload", "on"), ("cpu_offload",)),
    "ignored": Wanted(
        "state_dict",
        "fsdp2",
        has("ignored", "on"),
        ("ignored", "wrap"),
        modules=2,
        operations=1,
        trains=False,
        start=1,
    ),
    "ignored in training": Wanted(
        "parity",
        "fsdp1",
        has("unmanaged", "apart"),
        ("ignored", "ignored_parameters", "wrap"),
        modules=2,
    ),
    "ignored_parameters": Wanted(
        "parity",
        "fsdp2",
        has("ignored_parameters", "on"),
        ("ignored_parameters", "wrap"),
        modules=2,
        start=3,
    ),
    "averaged": Wanted(
        "parity",
        "fsdp1",
        has("unmanaged", "averaged"),
        ("ignored", "ignored_parameters", "wrap"),
        modules=2,
        operations=4,
    ),
    "units": Wanted("parity", "fsdp2", has("units", "2", "3+"), ("wrap",), modules=2),
    # From the first start a tie is met inside one Transformer, which no single step leaves. Others
    # begin where something small is met early: the longest took minutes.
    "ties": Wanted("parity", "fsdp2", lambda case: case.ties, ("ties",), modules=3, start=1),
    "frozen, fsdp1": Wanted(
        "fine_tune", "fsdp1", lambda case: case.frozen, ("freezing", "inputs"), modules=2
    ),
    "frozen, fsdp2": Wanted(
        "fine_tune", "fsdp2", lambda case: case.frozen, ("freezing", "inputs"), modules=2
    ),
    "checkpoints": Wanted("checkpoint", "fsdp2", lambda case: case.checkpoints, ("checkpoints",)),
    "variants": Wanted(
        "checkpoint", "fsdp1", has("variants", "checkpoints"), ("variants",), start=3
    ),
    "mem_tracker": Wanted("memory", "fsdp2", has("mem_tracker", "on"), ("mem_tracker",)),
    "state_dict": Wanted(
        "state_dict", "fsdp1", has("state_dict", "sharded"), operations=4, start=1
    ),
    "accumulation": Wanted(
        "parity", "fsdp1", has("accumulation", "no_sync"), operations=5, start=3
    ),
    "optimizer": Wanted("parity", "fsdp1", has("optimizer", "adam"), ("optimizer",)),
    "loss": Wanted("parity", "fsdp2", has("loss", "sum"), ("loss",)),
    "debug_level": Wanted("parity", "fsdp1", has("debug_level", "DETAIL"), ("debug_level",)),
    "flips": Wanted(
        "exec_order",
        "fsdp1",
        has("flips", "some"),
        ("wrap", "backward_prefetch"),
        modules=4,
        operations=10,
        steps=2,
    ),
}


MOST = 0.7
"""For how many of the conditions Hypothesis by itself has to arrive at what is wanted."""


@cache
def shrunk(name: str) -> tuple[CaseSpec, CaseSpec, CaseSpec]:
    """A failure as it is met, and what Hypothesis and the structural reducer leave of it."""
    wanted = WANTED[name]
    met: list[CaseSpec] = []

    def holds(case: CaseSpec) -> bool:
        trained = any(isinstance(op, Step) for op in case.program)
        if not (trained >= wanted.trains and wanted.holds(case)):
            return False
        met.append(case)
        return True

    strategy = cases(focus=wanted.focus, apis=(wanted.api,), world_sizes=(2, 3))
    try:
        alone = shrinks_to(
            lambda case: not superfluous(name, case), strategy, holds, start=wanted.start
        )
    except AssertionError:
        alone = min(met, key=lambda case: len(superfluous(name, case)))
    shows = Finding(invariant="grad_parity", symptom="mismatch", api=wanted.api)
    left = reduce(met[0], shows, lambda case: shows if holds(case) else None).case
    return met[0], alone, left


def superfluous(name: str, case: CaseSpec) -> list[str]:
    """What the case has beyond what its condition speaks of."""
    wanted = WANTED[name]
    found = [] if size(case) <= wanted.modules else ["modules"]
    found += [] if len(case.program) <= wanted.operations else ["operations"]
    steps = sum(isinstance(op, Step) for op in case.program)
    found += [] if steps <= wanted.steps else ["steps"]
    found += [] if (case.world_size, case.seed) == (2, 0) else ["ranks or seed"]
    # A shorter program may be no training at all; its length is bounded above.
    plain = {*wanted.needs, "program"}
    if not steps:
        plain.add("optimizer")  # Any will do for a program that only saves.
    others = [dimension for dimension in DIMENSIONS if dimension.name not in plain]
    return [*found, *(one.name for one in others if plainest(case, (one,)) != case)]


@pytest.mark.parametrize("name", WANTED)
def test_what_is_not_needed_goes_off(name: str) -> None:
    met, _, left = shrunk(name)
    assert not superfluous(name, left), left
    assert size(left) <= size(met)
    assert len(left.program) <= len(met.program)


def test_mostly_so_without_the_structural_reducer() -> None:
    """Strategies themselves shrink: a smaller choice is a plainer case."""
    stuck = {name: superfluous(name, shrunk(name)[1]) for name in WANTED}
    assert sum(not left for left in stuck.values()) >= MOST * len(WANTED), stuck


def size(case: CaseSpec) -> int:
    """How many modules have parameters."""
    return sum(bool(place.parameters) for place in anatomy(case).places)

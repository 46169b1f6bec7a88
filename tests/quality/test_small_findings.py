"""What is left of an injected fault's case is small, soon, and all of it is needed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median

import pytest

from fsdpfuzz.case import CaseSpec, anatomy, digest, foreseen_rejections, is_sound
from fsdpfuzz.invariants import judge
from fsdpfuzz.loop import Api
from fsdpfuzz.pool import Pool
from fsdpfuzz.reduce import alike, simpler
from fsdpfuzz.verdict import Finding
from tests.injected.hunting import UNITS, case_of, found_by, hunt
from tests.unit.reduce.samples import nodes, without_a_child, without_an_operation

RUNS = 60
STATE = "tests.quality.injected_state"
FAULTS: dict[str, tuple[str, str, str, Api]] = {
    "not averaged, fsdp1": (f"{UNITS}:second_unit_not_averaged", "parity", "grad_parity", "fsdp1"),
    "not averaged, fsdp2": (f"{UNITS}:second_unit_not_averaged", "parity", "grad_parity", "fsdp2"),
    "raises": (f"{UNITS}:second_unit_raises", "fine_tune", "no_crash", "fsdp2"),
    "stays whole": (f"{UNITS}:second_unit_stays_whole", "memory", "resharded_after", "fsdp2"),
    "loses a key": (f"{STATE}:fsdp2_loses_a_key", "state_dict", "state_dict_keys", "fsdp2"),
    "rounds": (f"{STATE}:fsdp1_saves_rounded_values", "state_dict", "state_dict_", "fsdp1"),
}


@cache
def smallest(fault: str) -> tuple[CaseSpec, Finding]:
    """The case of a fault as a run saved it, and the finding."""
    injection, property_name, invariant, api = FAULTS[fault]
    with tempfile.TemporaryDirectory() as folder:
        summary = hunt(
            injection,
            Path(folder),
            property_name=property_name,
            number=20,
            tries=RUNS,
            apis=(api,),
            scripts=False,
            until=(invariant,),
        )
        found = found_by(summary, invariant)
        return case_of(found), found.finding


class Ranks:
    """Ranks under the injection of a fault."""

    def __init__(self, fault: str) -> None:
        self._case, self._finding = smallest(fault)
        self._pool = Pool(self._case.world_size, "gloo", injection=FAULTS[fault][0])
        self._seen: dict[str, bool] = {}

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def show(self, case: CaseSpec) -> bool:
        """Whether a case of as many ranks still shows the fault's finding."""
        name = digest(case)
        if name not in self._seen:
            found = judge(case, self._pool.run(case)).findings
            self._seen[name] = any(alike(self._finding, other) for other in found)
        return self._seen[name]


def without_a_part(case: CaseSpec) -> Iterator[CaseSpec]:
    """Sound cases with fewer modules or operations."""
    yield from (c for c in (*without_a_child(case), *without_an_operation(case)) if is_sound(c))
    for neighbour in simpler(case):
        fewer = len(list(nodes(neighbour.case.model))) < len(list(nodes(case.model)))
        if fewer or len(neighbour.case.program) < len(case.program):
            yield neighbour.case


@pytest.mark.parametrize("fault", FAULTS)
def test_no_child_or_operation_is_left_that_can_go(fault: str) -> None:
    case, _ = smallest(fault)
    with Ranks(fault) as ranks:
        assert ranks.show(case)
        for smaller in without_a_part(case):
            if not foreseen_rejections(anatomy(smaller)):
                assert not ranks.show(smaller), smaller


@pytest.mark.timeout(900)
def test_the_cases_are_small_after_sixty_runs() -> None:
    modules, options = {}, {}
    for fault in FAULTS:
        case, _ = smallest(fault)
        modules[fault] = sum(bool(place.parameters) for place in anatomy(case).places)
        with Ranks(fault) as ranks:
            away = [n for n in simpler(case) if n.words and n.case.world_size == case.world_size]
            options[fault] = [n.words for n in away if ranks.show(n.case)]
    assert median(modules.values()) <= 2, modules
    assert median(len(words) for words in options.values()) <= 1, options

"""What is left of a case is needed for the finding, and is found in few runs."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Forward,
    Fsdp1Plan,
    Lora,
    Residual,
    StateDict,
    Step,
    anatomy,
    check,
    digest,
)
from fsdpfuzz.reduce import Reduced, reduce, simpler
from fsdpfuzz.reduce.neighbours import _unsound
from fsdpfuzz.verdict import Finding
from tests.unit.reduce.samples import (
    FIRST,
    GRAD,
    SECOND,
    nodes,
    without_a_child,
    without_an_operation,
)

Shows = Callable[[CaseSpec], bool]


def ops(case: CaseSpec, *kinds: type) -> int:
    return sum(isinstance(op, kinds) for op in case.program)


def has(case: CaseSpec, kind: type) -> bool:
    return any(isinstance(node, kind) for node in nodes(case.model))


def backwards(case: CaseSpec) -> bool:
    return ops(case, Backward) >= 1


FAULTS: dict[str, tuple[CaseSpec, Shows]] = {
    "any case": (FIRST, lambda _: True),
    "a backward": (FIRST, backwards),
    "a step": (SECOND, lambda case: ops(case, Step) >= 1),
    "two steps": (SECOND, lambda case: ops(case, Step) >= 2),
    "a second unit": (FIRST, lambda case: len(anatomy(case).units) >= 2 and backwards(case)),
    "reentrant": (FIRST, lambda case: any(c.reentrant for c in case.checkpoints)),
    "original parameters": (
        FIRST,
        lambda case: (
            isinstance(case.plan, Fsdp1Plan) and any(u.use_orig_params for u in case.plan.units)
        ),
    ),
    "a residual in a unit": (FIRST, lambda case: has(case, Residual) and backwards(case)),
    "an adapter": (FIRST, lambda case: has(case, Lora)),
    "a state dict": (FIRST, lambda case: ops(case, StateDict) >= 1),
    "a tie": (SECOND, lambda case: bool(case.ties)),
    "a frozen parameter": (FIRST, lambda case: bool(case.frozen) and backwards(case)),
    "no_sync": (FIRST, lambda c: any(isinstance(op, Forward) and not op.sync for op in c.program)),
}


def reduced(name: str, **options: int) -> tuple[Reduced, list[CaseSpec]]:
    case, shows = FAULTS[name]
    ran: list[CaseSpec] = []

    def examine(case: CaseSpec) -> Finding | None:
        check(case)
        ran.append(case)
        return msgspec.structs.replace(GRAD, api=case.api, op=-1) if shows(case) else None

    return reduce(case, msgspec.structs.replace(GRAD, op=-1), examine, **options), ran


@pytest.mark.parametrize("name", FAULTS)
def test_nothing_is_left_that_can_go(name: str) -> None:
    found, _ = reduced(name)
    _, shows = FAULTS[name]
    case = found.case
    assert found.complete
    assert shows(case)
    for smaller in (*without_a_child(case), *without_an_operation(case)):
        assert _unsound(smaller) or not shows(smaller), smaller
    assert [n.case for n in simpler(case) if shows(n.case)] == []


def parametrised(case: CaseSpec) -> int:
    """Modules with parameters of their own."""
    return sum(bool(place.parameters) for place in anatomy(case).places)


def test_few_runs_are_enough() -> None:
    """Of a fault that needs little the case is small after 60 runs, more often than not."""
    modules, runs = [], []
    for name in FAULTS:
        found, ran = reduced(name, max_runs=60)
        assert len(ran) == found.runs <= 60
        modules.append(parametrised(found.case))
        runs.append(reduced(name)[0].runs)
    assert median(modules) <= 2, dict(zip(FAULTS, modules, strict=True))
    assert median(runs) <= 60, dict(zip(FAULTS, runs, strict=True))


def test_no_case_is_run_twice() -> None:
    for name in FAULTS:
        found, ran = reduced(name)
        assert len({digest(case) for case in ran}) == len(ran) == found.runs
        assert digest(FAULTS[name][0]) not in {digest(case) for case in ran}


def test_the_finding_that_comes_back_is_that_of_the_case() -> None:
    def examine(case: CaseSpec) -> Finding | None:
        return msgspec.structs.replace(GRAD, name=digest(case))

    found = reduce(FIRST, GRAD, examine)
    assert found.finding.name == digest(found.case)
    assert found.steps > 1


def test_what_cannot_be_reduced_stays() -> None:
    found = reduce(FIRST, GRAD, lambda _: None)
    assert (found.case, found.finding, found.steps) == (FIRST, GRAD, 0)
    assert found.complete


@pytest.mark.parametrize("most", [0, 1, 4])
def test_it_ends_where_it_may_not_go_on(most: int) -> None:
    found, ran = reduced("a backward", max_runs=most)
    assert (found.runs, len(ran), found.complete) == (most, most, False)
    late = reduce(FIRST, GRAD, lambda _: None, seconds=0.0)
    assert (late.runs, late.complete) == (0, False)


def test_what_comes_after_the_finding_goes_first() -> None:
    ran: list[CaseSpec] = []
    finding = msgspec.structs.replace(GRAD, op=3)

    def examine(case: CaseSpec) -> Finding | None:
        ran.append(case)
        return None

    reduce(FIRST, finding, examine, max_runs=1)
    assert ran[0].program == FIRST.program[:4]

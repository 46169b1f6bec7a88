"""State-dict and memory cases are accepted, and save where saving is allowed."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from fsdpfuzz.spec import Backward, CaseSpec, Forward, Fsdp2Plan, StateDict, check, unit_owner
from fsdpfuzz.strategies import GROUND, memory_cases, state_dict_cases

QUICK = settings(
    max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


@QUICK
@given(state_dict_cases())
def test_state_dict_cases(case: CaseSpec) -> None:
    check(case)
    assert any(isinstance(op, StateDict) for op in case.program)
    pending, reduced = False, True
    for op in case.program:
        if isinstance(op, Forward):
            pending, reduced = True, op.sync
        elif isinstance(op, Backward):
            pending = False
        elif isinstance(op, StateDict):
            assert not pending
            assert reduced
    if any(isinstance(op, Forward) for op in case.program):
        assert None not in unit_owner(case).values()


@QUICK
@given(state_dict_cases(avoid=frozenset(GROUND)))
def test_state_dict_cases_keep_off_what_they_avoid(case: CaseSpec) -> None:
    for name in ("fsdp1_offloaded_full_state", "fsdp1_local_state_of_originals"):
        assert not GROUND[name].holds(case)


@QUICK
@given(memory_cases())
def test_memory_cases(case: CaseSpec) -> None:
    check(case)
    if case.probes:
        assert isinstance(case.plan, Fsdp2Plan)


@QUICK
@given(memory_cases(avoid=frozenset(GROUND)))
def test_memory_cases_keep_off_what_they_avoid(case: CaseSpec) -> None:
    assert not GROUND["fsdp2_tracked_idle_unit"].holds(case)


def reaches(strategy: st.SearchStrategy[CaseSpec], form: str) -> CaseSpec:
    def wanted(case: CaseSpec) -> bool:
        return any(isinstance(op, StateDict) and op.form == form for op in case.program)

    return find(strategy, wanted, settings=settings(QUICK, max_examples=2000))


def test_every_form_is_drawn_and_the_simplest_is_bare() -> None:
    assert reaches(state_dict_cases(), "full").program[0] == StateDict()
    for form in ("sharded", "local"):
        assert reaches(state_dict_cases(), form)


def test_probes_ignored_modules_and_offload_are_drawn() -> None:
    options = settings(QUICK, max_examples=2000, phases=[Phase.generate])
    assert find(memory_cases(), lambda case: bool(case.probes), settings=options)
    assert find(
        state_dict_cases(),
        lambda case: any(unit.ignored for unit in case.plan.units),
        settings=options,
    )
    assert find(
        memory_cases(),
        lambda case: bool(case.probes) and any(unit.cpu_offload for unit in case.plan.units),
        settings=options,
    )

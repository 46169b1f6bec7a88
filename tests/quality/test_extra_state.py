"""Extra state that is not saved, or not loaded, is found and reduced to a module that has some."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Mode,
    Rebuild,
    Sequential,
    StateDict,
    Step,
    chain,
)
from fsdpfuzz.case.modules import ExtraState
from tests.injected.by_hand import assert_scripted, judged
from tests.injected.hunting import (
    LONGER,
    assert_shown_by_its_script,
    case_of,
    found_by,
    hunt,
    linears,
)

NOT_LOADED = "benchmarks.faults.injections:dcp_extra_state_not_loaded"
NOT_SAVED = "benchmarks.faults.injections:fsdp1_unit_without_extra_state"
ONCE = (Forward(), Backward(), Step())
FORMS = {
    "fsdp1": (
        StateDict(form="full"),
        StateDict(form="full", rank0_only=True),
        StateDict(form="sharded"),
        StateDict(form="local"),
    ),
    "fsdp2": (
        StateDict(form="full"),
        StateDict(form="sharded", cpu_offload=True),
        StateDict(form="full", cpu_offload=True),
    ),
}


def case(api: str, as_dict: bool, *program: object) -> CaseSpec:
    """The module lies in the root's unit, and is a unit of its own."""
    node = ExtraState(as_dict=as_dict, counts=True)
    plan: Fsdp1Plan | Fsdp2Plan
    if api == "fsdp1":
        plan = Fsdp1Plan(units=(Fsdp1Unit(path="2"), Fsdp1Unit(path="")))
    else:
        plan = Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="2")))
    return msgspec.structs.replace(
        chain(api, (3, 5, 2), (0,), 2, ONCE),
        model=Sequential(children=(Linear(out=4), node, node, Linear(out=2))),
        plan=plan,
        program=program,
    )


@pytest.mark.parametrize("as_dict", [False, True])
@pytest.mark.parametrize("api", FORMS)
def test_it_is_saved_and_loaded_in_each_form(api: str, as_dict: bool) -> None:
    given = case(api, as_dict, *ONCE, *FORMS[api], *ONCE, Mode(train=False), Forward(grad=False))
    verdict = judged(given)
    assert (verdict.status, [f.key for f in verdict.findings]) == ("passed", [])


@pytest.mark.parametrize("as_dict", [False, True])
def test_training_goes_on_from_what_was_saved(as_dict: bool, tmp_path: Path) -> None:
    plan = Fsdp2Plan(units=(Fsdp2Unit(path=""),))
    given = case("fsdp2", as_dict, *ONCE, Rebuild(plan=plan), *ONCE)
    assert judged(given).status == "passed"
    # All else is loaded: it is the forward that shows it.
    found = {f.invariant: f for f in judged(given, NOT_LOADED).findings}
    assert found.keys() >= {"output_parity", "buffer_parity"}
    assert_scripted(given, found["buffer_parity"], NOT_LOADED, tmp_path)


def test_what_is_not_loaded(tmp_path: Path) -> None:
    summary = hunt(
        NOT_LOADED,
        tmp_path,
        property_name="state_dict",
        number=400,
        until=("state_dict_round_trip",),
    )
    found = found_by(summary, "state_dict_round_trip")
    assert linears(case_of(found)) <= 1
    assert_shown_by_its_script(found, lines=LONGER + 10)


def test_what_is_not_saved(tmp_path: Path) -> None:
    summary = hunt(
        NOT_SAVED,
        tmp_path,
        property_name="state_dict",
        number=800,
        apis=("fsdp1",),
        until=("state_dict_keys",),
    )
    found = found_by(summary, "state_dict_keys")
    assert linears(case_of(found)) <= 1
    assert_shown_by_its_script(found, lines=LONGER + 10)

"""What state dicts are asked for: their form stays, what is frozen is left out, or it is found."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import pytest

from fsdpfuzz.case import (
    CaseSpec,
    Dense,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Op,
    Sequential,
    StateDict,
)
from fsdpfuzz.case.operations.state_dict import UNTOUCHED
from tests.injected.by_hand import ONCE, assert_scripted, judged

FORGOTTEN = "benchmarks.faults.injections:fsdp1_form_not_put_back"
NOT_IGNORED = "benchmarks.faults.injections:frozen_parameters_not_ignored"


def case(*program: Op) -> CaseSpec:
    return CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=4), Linear(out=3))),
        inputs=Dense(width=3),
        plan=Fsdp1Plan(units=(Fsdp1Unit(path="0"), Fsdp1Unit(path="1"))),
        program=program,
    )


SETS = (
    StateDict(form="sharded", given="set"),
    StateDict(form="local", given="set"),
    StateDict(form="full", rank0_only=True, given="set"),
)


def kept(asked: StateDict) -> StateDict:
    return StateDict(form=asked.form, rank0_only=asked.rank0_only, given="kept")


@pytest.mark.parametrize("asked", SETS, ids=lambda op: op.form)
def test_a_form_that_a_context_does_not_put_back(asked: StateDict, tmp_path: Path) -> None:
    other = StateDict(form="sharded" if asked.form == "full" else "full")
    given = case(asked, other, kept(asked))
    assert judged(given).status == "passed"
    found = judged(given, FORGOTTEN).findings[0]
    assert_scripted(given, found, FORGOTTEN, tmp_path)


@pytest.mark.parametrize("asked", SETS, ids=lambda op: op.form)
def test_a_form_is_kept_in_training(asked: StateDict) -> None:
    assert judged(case(asked, *ONCE, kept(asked), *ONCE, kept(asked))).status == "passed"


@pytest.mark.parametrize("form", ["full", "sharded"])
def test_what_is_frozen_is_left_out(form: Literal["full", "sharded"], tmp_path: Path) -> None:
    given = msgspec.structs.replace(
        case(*ONCE, StateDict(form=form, ignore_frozen=True), *ONCE),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path="0"), Fsdp2Unit(path=""))),
        frozen=("0.weight", "1.bias"),
    )
    assert judged(given).status == "passed"
    (found,) = judged(given, NOT_IGNORED).findings
    assert found.key == "state_dict_keys/mismatch/fsdp2:unexpected"
    assert_scripted(given, found, NOT_IGNORED, tmp_path)


WHOLE = "state_of_a_module_has_all_keys"
KEPT = "prefix_of_a_module_kept"
LOST = "state_of_a_module_not_loaded"


def of_one(form: Literal["full", "sharded"], prefix: Literal["kept", "dropped"]) -> CaseSpec:
    asked = StateDict(form=form, submodule="1", prefix=prefix)
    plan = Fsdp2Plan(units=(Fsdp2Unit(path="0"), Fsdp2Unit(path="")))
    return msgspec.structs.replace(case(*ONCE, asked, *ONCE), plan=plan)


@pytest.mark.parametrize("form", ["full", "sharded"])
@pytest.mark.parametrize(
    ("prefix", "fault", "key"),
    [
        ("kept", WHOLE, "state_dict_keys/mismatch/fsdp2:unexpected"),
        ("dropped", KEPT, "state_dict_keys/mismatch/fsdp2:missing"),
        ("dropped", LOST, "state_dict_round_trip/mismatch/fsdp2"),
    ],
)
def test_the_state_of_one_module(
    form: Literal["full", "sharded"],
    prefix: Literal["kept", "dropped"],
    fault: str,
    key: str,
    tmp_path: Path,
) -> None:
    given, injection = of_one(form, prefix), f"benchmarks.faults.injections:{fault}"
    assert judged(given).status == "passed"
    found = judged(given, injection).findings[0]
    assert found.key == key
    assert_scripted(given, found, injection, tmp_path)


EMPTIED = "benchmarks.faults.injections:load_of_a_part_empties_the_rest"
PARTS = (
    StateDict(submodule="1"),
    StateDict(submodule="1", prefix="dropped"),
    StateDict(submodule="1", cpu_offload=True),
    StateDict(ignore_frozen=True),
)


@pytest.mark.parametrize("asked", PARTS, ids=lambda op: op.words())
def test_what_is_not_loaded_stays_as_it_was(asked: StateDict, tmp_path: Path) -> None:
    plan = Fsdp2Plan(units=(Fsdp2Unit(path="0"), Fsdp2Unit(path="")))
    given = msgspec.structs.replace(case(*ONCE, asked), plan=plan, frozen=("0.weight",))
    assert judged(given).status == "passed"
    found = judged(given, EMPTIED).findings[0]
    assert found.key == "state_dict_round_trip/mismatch/fsdp2"
    assert (found.name, found.expected) == ("0.weight", str(UNTOUCHED))
    assert_scripted(given, found, EMPTIED, tmp_path)


@pytest.mark.parametrize("prefix", ["kept", "dropped"])
def test_rank_0_has_the_state_of_one_module(prefix: Literal["kept", "dropped"]) -> None:
    given = of_one("full", prefix)
    program = [
        msgspec.structs.replace(op, cpu_offload=True) if isinstance(op, StateDict) else op
        for op in given.program
    ]
    assert judged(msgspec.structs.replace(given, program=tuple(program))).status == "passed"


GIVEN_UP = "benchmarks.faults.injections:full_load_empties_what_it_is_given"


@pytest.mark.parametrize(
    ("asked", "key"),
    [
        (StateDict(), "no_crash/crash"),
        (StateDict(submodule="1"), "state_dict_round_trip/mismatch"),
    ],
    ids=lambda value: value.words() if isinstance(value, StateDict) else "",
)
def test_what_was_loaded_can_be_loaded_again(asked: StateDict, key: str, tmp_path: Path) -> None:
    plan = Fsdp2Plan(units=(Fsdp2Unit(path="0"), Fsdp2Unit(path="")))
    once = msgspec.structs.replace(case(*ONCE, asked), plan=plan)
    assert judged(once, GIVEN_UP).status == "passed"
    asked = msgspec.structs.replace(asked, again=True)
    given = msgspec.structs.replace(once, program=(*ONCE, asked))
    found = judged(given, GIVEN_UP).findings[0]
    assert found.key.startswith(key)
    assert_scripted(given, found, GIVEN_UP, tmp_path)

"""State dicts that are loaded into two models, one after the other."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import (
    ITERATION,
    CaseSpec,
    Fsdp1Plan,
    Fsdp2Plan,
    Linear,
    Op,
    Sequential,
    StateDict,
    anatomy,
    check,
    decode,
    encode,
    features,
    lower,
)
from fsdpfuzz.case.recipe import Call, Do, Inside, Operation, Variable
from fsdpfuzz.reduce import simpler
from fsdpfuzz.repro import Context, render
from tests.unit.case.test_units import fsdp1, fsdp2, make

MODEL = Sequential(children=(Linear(out=2), Linear(out=2, bias=False)))
TWICE = StateDict(again=True)
SET = StateDict(given="set", again=True)
BARE = StateDict(submodule="1", prefix="dropped", again=True)
KEPT = StateDict(submodule="1", rank0_only=True, again=True)
OFFLOADED = StateDict(cpu_offload=True, again=True)
PLANS: dict[str, Fsdp1Plan | Fsdp2Plan] = {"fsdp1": fsdp1(""), "fsdp2": fsdp2("")}


def case(api: str, *program: Op) -> CaseSpec:
    return make(PLANS[api], model=MODEL, program=program)


@pytest.mark.parametrize(
    ("api", "asked", "value"),
    [
        ("fsdp1", (StateDict(),), "off"),
        ("fsdp1", (TWICE,), "on"),
        ("fsdp1", (OFFLOADED,), "on"),
        ("fsdp1", (StateDict(rank0_only=True, again=True),), "rank 0"),
        # With fsdp2 rank 0 alone has what is offloaded.
        ("fsdp2", (OFFLOADED,), "rank 0"),
        ("fsdp2", (StateDict(form="sharded", cpu_offload=True, again=True),), "on"),
        # Whose is asked of those alone that are loaded twice.
        ("fsdp2", (TWICE, StateDict(rank0_only=True)), "on"),
        ("fsdp2", (StateDict(rank0_only=True, again=True), TWICE), "rank 0"),
        ("fsdp2", (KEPT,), "rank 0"),
        # What is given is by the module then, made anew for each load.
        ("fsdp2", (msgspec.structs.replace(KEPT, prefix="dropped"),), "on"),
    ],
)
def test_it_goes_into_json_and_is_a_feature(api: str, asked: tuple[Op, ...], value: str) -> None:
    given = case(api, *asked)
    check(given)
    assert decode(encode(given)) == given
    assert features(given)["state_again"] == value


def name_of(call: Call) -> str:
    assert isinstance(call.function, str)
    return call.function


def calls(api: str, asked: StateDict) -> list[Call]:
    (body,) = [s.body for s in lower(anatomy(case(api, asked))).main if isinstance(s, Operation)]
    found = [do.call for do in body if isinstance(do, Do) and isinstance(do.call, Call)]
    names = ("load", "set_form", ".load_state_dict")
    return [call for call in found if name_of(call).endswith(names)]


FIRST, LOADED, STATE = Variable("first"), Variable("loaded"), Variable("state")


@pytest.mark.parametrize("api", PLANS)
def test_the_very_same_is_loaded(api: str) -> None:
    first, second = calls(api, TWICE)
    assert first.args == (FIRST, "full", STATE)
    assert second.args == (LOADED, "full", STATE)
    assert [call.args[0] for call in calls(api, StateDict())] == [LOADED]


def test_each_model_has_its_form_and_its_module() -> None:
    assert [(name_of(call).split(".")[-1], call.args[0]) for call in calls("fsdp1", SET)] == [
        ("set_form", Variable("model")),
        ("set_form", FIRST),
        ("load_state_dict", FIRST),
        ("set_form", LOADED),
        ("load_state_dict", LOADED),
    ]
    assert [dict(call.options)["part"] for call in calls("fsdp2", BARE)] == [
        Inside("first", "1"),
        Inside("loaded", "1"),
    ]


def test_once_is_plainer() -> None:
    found = {s.words: s.case.program[-1] for s in simpler(case("fsdp2", *ITERATION, TWICE))}
    assert found["a second load"] == StateDict()


@pytest.mark.parametrize(("api", "asked"), [("fsdp1", SET), ("fsdp2", TWICE), ("fsdp2", BARE)])
def test_a_script_loads_both(api: str, asked: StateDict) -> None:
    script = render(case(api, asked), None, Context())
    compile(script, "repro.py", "exec")
    assert script.count("first = ") == script.count("loaded = ") == 1

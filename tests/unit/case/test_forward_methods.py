"""What units called by a method are told, and what goes with them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fsdpfuzz.case import (
    ITERATION,
    CaseSpec,
    Checkpoint,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Method,
    Plan,
    Sequential,
    anatomy,
    check,
    features,
    lower,
    unit_features,
)
from fsdpfuzz.case.modules.method import BY_METHOD
from fsdpfuzz.case.recipe import MODEL, Call, Do, Inside, Operation
from fsdpfuzz.errors import CaseError
from fsdpfuzz.reduce import simpler

REGISTER = "torch.distributed.fsdp.register_fsdp_forward_method"
BY_ENCODE = (Forward(by_method=True), *ITERATION[1:])


def fsdp2(*paths: str) -> Plan:
    return Fsdp2Plan(units=tuple(Fsdp2Unit(path=path) for path in paths))


def case(plan: Plan, **changes: Any) -> CaseSpec:
    values: dict[str, Any] = {
        "world_size": 2,
        "model": Method(body=Linear(out=3)),
        "inputs": Dense(width=2),
        "plan": plan,
        "program": ITERATION,
    }
    return CaseSpec(**values | changes)


def registered(given: CaseSpec) -> list[object]:
    """The modules that are registered with ``encode``, after all units are made."""
    body = lower(anatomy(given)).procedure("shard").body
    calls = [s.call for s in body if isinstance(s, Do) and isinstance(s.call, Call)]
    last = [call for call in calls if call.function == REGISTER]
    assert not last or calls[-len(last) :] == last
    assert all(call.args[1:] == ("encode",) for call in last)
    return [call.args[0] for call in last]


@pytest.mark.parametrize(
    ("paths", "program", "modules", "feature"),
    [
        (("",), ITERATION, [], "no"),
        (("", "inner.body"), ITERATION, [], "no"),
        (("inner",), ITERATION, [Inside("model", "inner")], "inner"),
        (("",), BY_ENCODE, [MODEL], "root"),
        (("", "inner"), BY_ENCODE, [MODEL, Inside("model", "inner")], "both"),
        # Who calls what is no unit by a method registers nothing.
        (("inner.body",), BY_ENCODE, [], "no"),
    ],
)
def test_units_are_registered(
    paths: tuple[str, ...], program: Any, modules: list[object], feature: str
) -> None:
    given = case(fsdp2(*paths), program=program)
    check(given)
    assert registered(given) == modules
    assert features(given)["forward_method"] == feature
    a = anatomy(given)
    shown = [path for path in a.units if unit_features(a, path)["by_method"] == "on"]
    assert len(shown) == len(modules)


def test_the_program_calls_the_method() -> None:
    given = case(fsdp2(""), program=BY_ENCODE)
    operation = next(s for s in lower(anatomy(given)).main if isinstance(s, Operation))
    called = [
        s.call.function for s in operation.body if isinstance(s, Do) if isinstance(s.call, Call)
    ]
    assert Inside("model", "encode") in called
    assert given.program[0].words() == "forward by encode"
    plainer = [one.case.program for one in simpler(given) if "register" in one.words]
    assert plainer == [ITERATION]


def test_it_is_a_module_in_two_and_keeps_no_width() -> None:
    places = anatomy(case(fsdp2(""))).places
    assert [(p.path, p.kind, p.width_out) for p in places] == [
        ("", "method", 3),
        ("inner", BY_METHOD, 3),
        ("inner.body", "linear", 3),
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"plan": Fsdp1Plan(units=(Fsdp1Unit(path=""), Fsdp1Unit(path="inner")))},
            "'inner' has no forward, for which alone fsdp1 gathers",
        ),
        (
            {"plan": Fsdp1Plan(units=(Fsdp1Unit(path=""),)), "program": BY_ENCODE},
            "'' has no method for fsdp2",
        ),
        ({"model": Linear(out=3), "program": BY_ENCODE}, "'' has no method for fsdp2"),
        ({"checkpoints": (Checkpoint(path="inner"),)}, "which no checkpoint recomputes"),
        (
            {"checkpoints": (Checkpoint(path=""),), "program": BY_ENCODE},
            "which no checkpoint recomputes",
        ),
        ({"program": (Forward(target="inner"), *ITERATION[1:])}, "or has no forward"),
    ],
)
def test_what_goes_past_fsdp_is_refused(changes: dict[str, Any], words: str) -> None:
    plan = changes.pop("plan", fsdp2(""))
    with pytest.raises(CaseError, match=words):
        check(case(plan, **changes))


def test_a_checkpoint_around_the_caller_is_sound() -> None:
    whole = Sequential(children=(Method(body=Linear(out=2)), Linear(out=1)))
    check(case(fsdp2("", "0.inner"), model=whole, checkpoints=(Checkpoint(path="0"),)))
    bare = msgspec.structs.replace(case(fsdp2("")), checkpoints=(Checkpoint(path="inner.body"),))
    check(bare)

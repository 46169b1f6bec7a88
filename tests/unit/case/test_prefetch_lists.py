"""Lists of units to prefetch: what they may name, when FSDP is told, what is plainer."""

from __future__ import annotations

import msgspec
import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Checkpoint,
    Dense,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Sequential,
    anatomy,
    check,
    decode,
    encode,
    features,
    is_sound,
    lower,
    unit_features,
)
from fsdpfuzz.case.recipe import MODEL, Call, Do, Inside, Items
from fsdpfuzz.errors import CaseError
from fsdpfuzz.reduce import simpler

LAYER = Linear(out=2)


def case(*units: Fsdp2Unit) -> CaseSpec:
    return CaseSpec(
        world_size=2,
        model=Sequential(children=(LAYER, LAYER, LAYER)),
        inputs=Dense(width=2),
        plan=Fsdp2Plan(units=units),
        program=(Forward(), Backward()),
    )


ROOT = Fsdp2Unit(path="", prefetched_in_forward=("0", "1"))
LAST = Fsdp2Unit(path="1", prefetched_in_backward=("0",))
GIVEN = case(ROOT, Fsdp2Unit(path="0"), LAST)


def test_units_are_told_once_all_are_made() -> None:
    check(GIVEN)
    assert decode(encode(GIVEN)) == GIVEN
    body = lower(anatomy(GIVEN)).procedures[1].body
    calls = [do.call for do in body if isinstance(do, Do) and isinstance(do.call, Call)]
    assert [call.function for call in calls[3:]] == [
        ".set_modules_to_forward_prefetch",
        ".set_modules_to_backward_prefetch",
    ]
    first, second = Inside("model", "0"), Inside("model", "1")
    assert calls[3].args == (MODEL, Items("list", (first, second)))
    assert calls[4].args == (second, Items("list", (first,)))


def test_a_unit_in_a_wrapper_is_named_itself() -> None:
    around = Checkpoint(path="0", kind="offload", side="around")
    body = lower(anatomy(msgspec.structs.replace(GIVEN, checkpoints=(around,)))).procedures[1].body
    told = [do.call for do in body if isinstance(do, Do) and isinstance(do.call, Call)][-1]
    wrapped = Inside("model", "0._checkpoint_wrapped_module")
    assert told.args == (Inside("model", "1"), Items("list", (wrapped,)))


def test_its_features_are_those_of_the_unit_that_is_told() -> None:
    assert features(GIVEN)["prefetched_in_forward"] == "on"
    seen = {path: unit_features(anatomy(GIVEN), path) for path in ("", "0", "1")}
    assert [seen[path]["prefetched_in_forward"] for path in seen] == ["on", "off", "off"]
    assert [seen[path]["prefetched_in_backward"] for path in seen] == ["off", "off", "on"]


@pytest.mark.parametrize(
    ("units", "text"),
    [
        ((Fsdp2Unit(path="", prefetched_in_forward=("2",)),), "has no unit '2'"),
        ((Fsdp2Unit(path="", prefetched_in_forward=("",)),), "does not prefetch itself"),
        (
            (Fsdp2Unit(path="0"), Fsdp2Unit(path="1", prefetched_in_backward=("0",))),
            "lies under another root",
        ),
    ],
)
def test_it_names_other_units_of_one_root(units: tuple[Fsdp2Unit, ...], text: str) -> None:
    with pytest.raises(CaseError, match=text):
        check(case(*units))


def test_shorter_lists_are_plainer() -> None:
    sound = [s for s in simpler(GIVEN) if is_sound(s.case)]
    words = {s.words for s in sound}
    assert {"set_modules_to_forward_prefetch", "set_modules_to_backward_prefetch"} <= words
    lists = {
        unit.prefetched_in_forward
        for s in sound
        for unit in s.case.plan.units
        if isinstance(unit, Fsdp2Unit)
    }
    assert {("0",), ("1",)} <= lists

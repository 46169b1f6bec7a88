"""State dicts of fsdp2 that have the entries of one module alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fsdpfuzz.case import (
    ITERATION,
    CaseSpec,
    Linear,
    Norm,
    Op,
    Sequential,
    StateDict,
    Tie,
    anatomy,
    check,
    decode,
    encode,
    features,
    lower,
)
from fsdpfuzz.case.operations.state_dict import UNTOUCHED, left_alone, saved_of, saves_any
from fsdpfuzz.case.recipe import Call, Do, Inside, Operation, Variable
from fsdpfuzz.errors import CaseError
from fsdpfuzz.reduce import simpler
from fsdpfuzz.reduce.tree import smaller_models
from fsdpfuzz.repro import Context, render
from fsdpfuzz.steps.extra_state import blank as blank_extra
from fsdpfuzz.steps.state_dict import blank
from tests.unit.case.test_units import fsdp1, fsdp2, make

INNER = Sequential(children=(Linear(out=2, bias=False), Norm()))
MODEL = Sequential(children=(Linear(out=2, bias=False), INNER))
KEPT = StateDict(submodule="1")
BARE = StateDict(submodule="1", prefix="dropped")


def case(*program: Op, **changes: object) -> CaseSpec:
    given = {"model": MODEL, "program": program, **changes}
    return make(given.pop("plan", fsdp2("")), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "value"),
    [(StateDict(), "no"), (KEPT, "prefix kept"), (BARE, "prefix dropped")],
)
def test_it_goes_into_json_and_is_a_feature(asked: StateDict, value: str) -> None:
    given = case(asked)
    check(given)
    assert decode(encode(given)) == given
    assert features(given)["state_submodule"] == value
    assert "state_submodule" not in features(case(StateDict(), plan=fsdp1("")))


ALL = {"0.weight", "1.0.weight", "1.1.weight", "1.1.bias"}
TIED = (Tie(source="0.weight", target="1.0.weight"),)


@pytest.mark.parametrize(
    ("asked", "changes", "expected"),
    [
        (StateDict(), {}, set[str]()),
        (StateDict(), {"frozen": ("0.weight",)}, set[str]()),
        (StateDict(ignore_frozen=True), {"frozen": ("0.weight",)}, {"0.weight"}),
        (StateDict(ignore_frozen=True), {}, set[str]()),
        (KEPT, {}, {"0.weight"}),
        (BARE, {}, {"0.weight"}),
        (StateDict(submodule="0"), {}, ALL - {"0.weight"}),
        # By the other name.
        (KEPT, {"ties": TIED}, set[str]()),
        (StateDict(submodule="1.1"), {"ties": TIED}, {"0.weight", "1.0.weight"}),
        (
            StateDict(submodule="1", ignore_frozen=True),
            {"frozen": ("1.1.bias",)},
            {"0.weight", "1.1.bias"},
        ),
    ],
)
def test_what_a_load_leaves_alone(
    asked: StateDict, changes: dict[str, object], expected: set[str]
) -> None:
    assert left_alone(anatomy(case(asked, **changes)), 0) == expected


@pytest.mark.parametrize("blanked", [blank, blank_extra], ids=["plain", "extra state"])
def test_each_element_of_what_is_tied_changes_once(
    blanked: Callable[..., torch.nn.Module],
) -> None:
    first, second = torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2)
    second.weight = first.weight
    model = torch.nn.Sequential(first, second)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, -1.0], [0.0, 2.0]]))
    blanked(model, -1, 0)
    assert second.weight.tolist() == [[-1, 0], [-1, -1]]
    blanked(model)
    assert second.weight.tolist() == [[0, -1], [0, 0]]


def test_nothing_starts_as_what_it_is_blanked_to() -> None:
    """Where a state dict leaves something out, its model has to hold that number afterwards."""
    model = torch.nn.utils.parametrizations.orthogonal(torch.nn.Linear(3, 3))
    assert any((p == -1).any() for p in model.parameters())
    blank(model, UNTOUCHED, 0)
    assert all(p.eq(UNTOUCHED).all() for p in model.parameters())


def test_of_several_the_furthest_is_told() -> None:
    assert features(case(BARE, KEPT, StateDict()))["state_submodule"] == "prefix dropped"


@pytest.mark.parametrize(
    ("asked", "changes", "words", "place"),
    [
        (KEPT, {"plan": fsdp1("")}, "an option of fsdp2 alone", "submodule"),
        (StateDict(submodule="2"), {}, "the model has no module '2'", "submodule[0]"),
        (StateDict(prefix="dropped"), {}, "the model has no prefix", "prefix"),
    ],
)
def test_what_contradicts_the_model(
    asked: StateDict, changes: dict[str, object], words: str, place: str
) -> None:
    with pytest.raises(CaseError, match=words) as caught:
        check(case(asked, **changes))
    assert caught.value.path == f"$.program[0].{place}"


def test_it_has_what_lies_in_the_module() -> None:
    keys = ["0.weight", "1.0.weight", "1.1.weight", "10.weight"]
    a = anatomy(case(KEPT, StateDict(), BARE, *ITERATION))
    assert saved_of(a, 0, keys) == saved_of(a, 2, keys) == {"1.0.weight", "1.1.weight"}
    assert saved_of(a, 1, keys) == set(keys)
    assert [path for path in a.by_path if saves_any(a, path)] == ["", "0", "1", "1.0", "1.1"]


def test_what_is_tied_is_saved_by_its_name_in_the_module() -> None:
    tied = case(KEPT, ties=(Tie(source="0.weight", target="1.0.weight"),))
    assert saved_of(anatomy(tied), 0, ["0.weight", "1.0.weight"]) == {"1.0.weight"}


@pytest.mark.parametrize(
    ("asked", "frozen", "value"),
    [
        (StateDict(ignore_frozen=True), "0.weight", "left out"),
        (StateDict(ignore_frozen=True, submodule="1"), "1.0.weight", "left out"),
        (StateDict(ignore_frozen=True, submodule="1"), "0.weight", "missing"),
        (StateDict(ignore_frozen=True, submodule="1", prefix="dropped"), "1.0.weight", "missing"),
        (KEPT, "0.weight", "saved"),
    ],
)
def test_what_is_frozen_may_not_be_there(asked: StateDict, frozen: str, value: str) -> None:
    assert features(case(asked, frozen=(frozen,)))["state_frozen"] == value


def test_it_is_loaded_as_it_was_saved() -> None:
    def asked(op: StateDict) -> list[dict[str, object]]:
        (body,) = [s.body for s in lower(anatomy(case(op))).main if isinstance(s, Operation)]
        calls = [do.call for do in body if isinstance(do, Do) and isinstance(do.call, Call)]
        rooms = [f"steps.fsdp2.state_dict.{name}" for name in ("save", "load")]
        return [dict(c.options) for c in calls if c.function in rooms]

    assert asked(StateDict()) == [{}, {}]
    assert asked(KEPT) == [{"prefix": "kept", "part": Inside("model", "1")}, {"prefix": "kept"}]
    assert [options["part"] for options in asked(BARE)] == [
        Inside("model", "1"),
        Inside("loaded", "1"),
    ]


def test_its_keys_are_those_of_the_whole_model_again() -> None:
    assert StateDict().named == KEPT.named == Variable("state")
    named = BARE.named
    assert isinstance(named, Call)
    assert named.args == (Variable("state"), "1.")


def test_with_its_prefix_or_all_of_the_model_is_plainer() -> None:
    found = {s.words: s.case.program[-1] for s in simpler(case(*ITERATION, BARE))}
    assert found["keep_submodule_prefixes"] == KEPT
    assert found["submodules"] == StateDict()


def test_its_name_follows_the_module() -> None:
    deeper = case(*ITERATION, StateDict(submodule="1.1"))
    programs = [c.program for c in smaller_models(deeper)]
    assert (*ITERATION, StateDict(submodule="0.1")) in programs


def test_a_script_names_the_module() -> None:
    script = render(case(BARE), None, Context())
    compile(script, "repro.py", "exec")
    assert "submodules={model[1]}" in script
    assert "options.keep_submodule_prefixes = False" in script
    assert "{loaded[1]: state" in script
    assert "submodule" not in render(case(StateDict()), None, Context())

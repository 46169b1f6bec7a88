"""Which layers a forward leaves out, what gets gradients then, and what that is no use for."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Checkpoint,
    Dropout,
    Flip,
    Forward,
    Fsdp1Plan,
    Idle,
    Linear,
    Mode,
    Op,
    Plan,
    RequiresGrad,
    Sequential,
    Step,
    Switch,
    Tie,
    anatomy,
    check,
    decode,
    encode,
    features,
    is_sound,
    surely_trains,
    unit_features,
)
from fsdpfuzz.case.lacking import graded_together, may_lack_backward
from fsdpfuzz.case.mesh import Mesh
from fsdpfuzz.case.micro_batches import MicroBatches
from fsdpfuzz.case.modules import LayerDrop
from fsdpfuzz.case.operations import OptimState, Rebuild, ZeroGrad
from fsdpfuzz.case.stepped import stateless
from fsdpfuzz.errors import CaseError
from fsdpfuzz.expect.bytes import settled
from fsdpfuzz.reduce.tree import smaller_models
from tests.unit.case.test_units import fsdp1, fsdp2, make

TWO = LayerDrop(children=(Linear(out=4), Linear(out=4)))
ONCE: tuple[Op, ...] = (Forward(), Backward())
LATER: tuple[Op, ...] = (Forward(sync=False), Backward())


def case(plan: Plan | None = None, program: tuple[Op, ...] = ONCE, **changes: Any) -> CaseSpec:
    return make(plan or fsdp2(""), program=program, **{"model": TWO, **changes})


def called(given: CaseSpec) -> list[str]:
    """By each forward, the layers by their number."""
    a = anatomy(given)
    found = []
    for _, op, now in a.situations(0):
        if isinstance(op, Forward):
            paths = [call.path for call in a.calls(op, now)]
            found.append("".join(p.removeprefix("layers.") for p in paths if p))
    return found


def having(given: CaseSpec, feature: str) -> list[str]:
    a = anatomy(given)
    return [path for path in a.units if unit_features(a, path)[feature] == "on"]


@pytest.mark.parametrize(
    ("start", "program", "expected"),
    [
        (0, ONCE * 4, ["01", "1", "0", "01"]),
        (2, ONCE * 3, ["0", "01", "1"]),
        # Also one that no backward follows counts.
        (0, (Forward(grad=False), *ONCE), ["01", "1"]),
        (0, (*ONCE, Mode(train=False), *ONCE, Mode(train=True), *ONCE), ["01", "01", "0"]),
    ],
)
def test_each_forward_leaves_out_the_next_layer(
    start: int, program: tuple[Op, ...], expected: list[str]
) -> None:
    model = LayerDrop(children=TWO.children, start=start)
    assert called(case(program=program, model=model)) == expected


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (case(model=LayerDrop(children=(Linear(out=4), Linear(out=3)))), "must keep the width 4"),
        (
            case(fsdp1("", forward_prefetch=True)),
            "forwards that leave out modules are no static graph",
        ),
    ],
)
def test_what_it_does_not_go_with_is_refused(wrong: CaseSpec, says: str) -> None:
    with pytest.raises(CaseError, match=says):
        check(wrong)


def test_it_is_kept_as_it_is_and_reduced_to_one_of_its_layers() -> None:
    given = case(model=LayerDrop(children=(Linear(out=4), Dropout()), start=2))
    check(given)
    assert decode(encode(given)) == given
    assert features(given)["layer_drop"] == "on"
    assert features(case(model=Sequential(children=TWO.children)))["layer_drop"] == "off"
    smaller = [found.model for found in smaller_models(given)]
    assert LayerDrop(children=(Linear(out=4), Dropout())) in smaller
    assert Linear(out=4) in smaller


@pytest.mark.parametrize(
    ("model", "same"),
    [
        (TWO, False),
        (LayerDrop(children=(Idle(), Linear(out=4))), True),
        (LayerDrop(children=(Idle(), *TWO.children)), False),
    ],
)
def test_it_returns_its_input_only_where_all_that_is_left_does(model: Any, same: bool) -> None:
    assert model.returns_its_input() is same


@pytest.mark.parametrize(
    ("model", "frozen", "lacks"),
    [
        # Programs in which layers that are left out are all that is trained are refused.
        (TWO, (), False),
        (Sequential(children=(TWO, Linear(out=4))), ("1.weight", "1.bias"), False),
        # Of a switch each path trains something, unless some of it is frozen.
        (Switch(children=TWO.children), (), False),
        (Switch(children=TWO.children), ("branches.0.weight",), True),
        (
            Sequential(children=(Switch(children=TWO.children), Linear(out=4))),
            ("0.branches.0.weight", "0.branches.0.bias"),
            False,
        ),
    ],
)
def test_a_loss_may_need_no_gradient(model: Any, frozen: tuple[str, ...], lacks: bool) -> None:
    assert may_lack_backward(anatomy(case(model=model, frozen=frozen))) is lacks


SECOND = ("layers.1.weight", "layers.1.bias")


@pytest.mark.parametrize(
    ("frozen", "program", "at"),
    [
        (SECOND, ONCE, None),
        (SECOND, ONCE * 2, 3),
        # The other forward before the same backward reads it.
        (SECOND, (Forward(), *ONCE), None),
        (SECOND, (Forward(grad=False), Forward(grad=False), *ONCE), None),
        (SECOND, (Forward(grad=False), *ONCE), 2),
        ((), ONCE * 3, None),
        ((), (*ONCE, RequiresGrad(parameters=SECOND, value=False), *ONCE), 4),
    ],
)
def test_no_backward_lacks_all_that_is_trained(
    frozen: tuple[str, ...], program: tuple[Op, ...], at: int | None
) -> None:
    given = case(program=program, frozen=frozen)
    assert is_sound(replace(given, inputs=replace(given.inputs, requires_grad=True)))
    if at is None:
        check(given)
        return
    with pytest.raises(CaseError, match="leave out all that is trained") as caught:
        check(given)
    assert caught.value.path == f"$.program[{at}]"


def test_under_reentrant_checkpointing_what_is_trained_needs_inputs_that_require_grad() -> None:
    inner = Sequential(children=(Linear(out=4), TWO))
    around = (Checkpoint(path="1.layers.1", reentrant=True),)
    given = case(program=ONCE * 2, model=inner, frozen=("0.weight", "0.bias"))
    check(given)
    # The second forward leaves out the other one.
    with pytest.raises(CaseError, match="leave out all that is trained"):
        check(replace(given, checkpoints=around))


@pytest.mark.parametrize(
    ("model", "frozen", "surely"),
    [
        (TWO, (), True),
        (TWO, SECOND, False),
        (LayerDrop(children=(Linear(out=4), Dropout())), (), False),
        (LayerDrop(children=(*TWO.children, Linear(out=4))), SECOND, True),
        (Sequential(children=(TWO, Linear(out=4))), ("0.layers.1.weight", "0.layers.1.bias"), True),
        # Of two layers one, in which again one of two.
        (LayerDrop(children=(TWO, Linear(out=4))), (), True),
        (LayerDrop(children=(TWO, Linear(out=4))), ("layers.0.layers.1.weight",), True),
        (
            LayerDrop(children=(TWO, Linear(out=4))),
            ("layers.0.layers.1.weight", "layers.0.layers.1.bias"),
            False,
        ),
        # A switch may stand on another path.
        (LayerDrop(children=(Switch(children=TWO.children), Linear(out=4))), (), False),
    ],
)
def test_every_forward_trains_something(model: Any, frozen: tuple[str, ...], surely: bool) -> None:
    assert surely_trains(anatomy(case(model=model)), frozen) is surely


def test_what_the_only_step_left_out_has_no_state() -> None:
    program = (*ONCE, Step(), ZeroGrad(), OptimState(flatten=True, strict=False, fresh=True))
    plan = fsdp1("", "layers.0")
    # Without the second layer, which is the root's; and with both.
    assert stateless(anatomy(case(plan, program, model=replace(TWO, start=2)))) == set(SECOND)
    assert stateless(anatomy(case(plan, program))) == set()


def test_a_backward_gives_gradients_to_what_its_forwards_have_read() -> None:
    def given(plan: Plan, program: tuple[Op, ...]) -> list[set[str]]:
        a = anatomy(case(plan, program))
        return [
            {name.rpartition(".")[0].removeprefix("layers.") for name in now.given}
            for _, op, now in a.situations(0)
            if op.gives_gradients
        ]

    assert given(fsdp2(""), ONCE * 3) == [{"0", "1"}, {"1"}, {"0"}]
    assert given(fsdp2(""), (Forward(), *ONCE, *ONCE)) == [{"0", "1"}, {"0"}]
    # Of a flat parameter all do.
    assert given(fsdp1(""), ONCE * 2) == [{"0", "1"}] * 2
    assert given(fsdp1("", "layers.0"), ONCE * 3) == [{"0", "1"}, {"1"}, {"0"}]


def test_a_frozen_part_that_is_read_gives_the_rest_of_its_unit_zeros() -> None:
    def zeros(plan: Plan, **changes: Any) -> list[set[str]]:
        frozen = ("layers.1.weight", "layers.1.bias")
        a = anatomy(case(plan, ONCE * 3, frozen=frozen, **changes))
        return [set(now.zeros) for _, op, now in a.situations(0) if op.gives_gradients]

    left_out = {"layers.0.weight", "layers.0.bias"}
    # By the second forward the first layer is left out, by the third the frozen one.
    assert zeros(fsdp1("", use_orig_params=True)) == [set(), left_out, set()]
    apart = zeros(fsdp1("", "layers.0", use_orig_params=True))
    assert apart == zeros(fsdp2("")) == [set()] * 3
    recomputed = (Checkpoint(path="layers.1", reentrant=True),)
    assert zeros(fsdp1("", use_orig_params=True), checkpoints=recomputed) == [set()] * 3
    # A flat parameter is trained as a whole: what is frozen lies in others.
    assert zeros(fsdp1("", "layers.1")) == [set()] * 3


def test_what_is_tied_is_called_by_each_of_its_names() -> None:
    tie = (Tie(source="layers.0.weight", target="layers.1.weight"),)
    layers = LayerDrop(children=(Linear(out=4), Linear(out=4, bias=False)))
    names = ("layers.0.weight", "layers.0.bias")
    assert graded_together(anatomy(case(fsdp1(""), model=layers, ties=tie))) == (names,)


def test_what_lies_in_one_flat_parameter_gets_zeros_together() -> None:
    names = tuple(f"layers.{i}.{name}" for i in (0, 1) for name in ("weight", "bias"))
    assert graded_together(anatomy(case(fsdp1("")))) == (names,)
    assert graded_together(anatomy(case(fsdp1("", "layers.0")))) == ()
    assert graded_together(anatomy(case(fsdp2("")))) == ()


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (ONCE, []),
        (ONCE * 2, ["layers.0"]),
        (ONCE * 3, ["layers.0", "layers.1"]),
        # One of both calls it.
        ((*ONCE, Forward(), Forward(), Backward()), []),
        ((*ONCE, Mode(train=False), *ONCE), []),
    ],
)
def test_a_unit_is_left_out_by_all_forwards_before_a_backward(
    program: tuple[Op, ...], expected: list[str]
) -> None:
    assert having(case(fsdp2("", "layers.0", "layers.1"), program), "left_out") == expected


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (ONCE * 3, []),
        # The first forward leaves out none, the second one the first layer, the third the other.
        ((Forward(grad=False), *ONCE), ["layers.0"]),
        ((Forward(drop=True), *ONCE), ["layers.0"]),
        ((Forward(grad=False), Forward(grad=False), *ONCE), ["layers.1"]),
        # One of both before the backward calls it.
        ((Forward(grad=False), Forward(), *ONCE), []),
        # The backward that it takes part in frees it.
        ((*ONCE, *ONCE, Forward(grad=False), *ONCE, *ONCE), []),
        # It waits for that one, however many come between.
        ((Forward(grad=False), *ONCE, *ONCE), ["layers.0"]),
        # No backward comes, or none but of what was wrapped anew.
        ((*ONCE, Forward(grad=False)), []),
        ((Forward(grad=False), Rebuild(plan=fsdp1("", "layers.0", "layers.1")), *ONCE), []),
    ],
)
def test_a_unit_is_left_behind_by_a_forward_without_backward(
    program: tuple[Op, ...], expected: list[str]
) -> None:
    assert having(case(fsdp1("", "layers.0", "layers.1"), program), "left_behind") == expected


def test_a_flip_leaves_out_a_unit_as_well() -> None:
    switch = Switch(children=TWO.children)
    program = (*ONCE, Flip(path="", ranks=(0, 1)), *ONCE)
    given = case(fsdp2("", "branches.0"), program, model=switch)
    assert having(given, "left_out") == ["branches.0"]


SECOND = ("layers.1.weight", "layers.1.bias")
FREEZE, UNFREEZE = (RequiresGrad(parameters=SECOND, value=value) for value in (False, True))


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (ONCE * 2, []),
        # The third one leaves out the second layer, which is the root's.
        (ONCE * 3, [""]),
        ((*ONCE, *ONCE, ZeroGrad(), *ONCE), []),
        ((*ONCE, *ONCE, FREEZE, *ONCE), []),
        ((*ONCE, *ONCE, Forward(grad=False)), []),
    ],
)
def test_a_unit_with_gradients_is_called_and_not_read(
    program: tuple[Op, ...], expected: list[str]
) -> None:
    plan = fsdp1("", "layers.0", use_orig_params=True)
    assert having(case(plan, program), "quiet_graded") == expected


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ((*LATER, *ONCE), ["layers.0"]),
        ((*LATER, *LATER, *ONCE), [""]),
        ((*LATER, *LATER), []),
        ((*ONCE, *ONCE), []),
        ((*LATER, Forward(), Forward(), Backward()), []),
        ((Forward(grad=False), *LATER, *ONCE), [""]),
    ],
)
def test_gradients_wait_for_a_backward_that_gives_the_unit_none(
    program: tuple[Op, ...], expected: list[str]
) -> None:
    assert having(case(fsdp1("", "layers.0"), program), "left_unreduced") == expected


@pytest.mark.parametrize(
    ("program", "units", "expected"),
    [
        # Forwards use both layers, then the second one, then the first one.
        ((*LATER, *ONCE), [""], []),
        ((Forward(grad=False), *LATER, *ONCE), [""], [""]),
        ((Forward(grad=False), *LATER, *ONCE), ["", "layers.0", "layers.1"], []),
        ((FREEZE, *LATER, UNFREEZE, *ONCE), [""], [""]),
    ],
)
def test_a_parameter_has_its_first_gradient_where_those_of_others_wait(
    program: tuple[Op, ...], units: list[str], expected: list[str]
) -> None:
    assert having(case(fsdp2(*units), program), "joined_unreduced") == expected


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ((*LATER, *ONCE), [""]),
        ((Forward(grad=False), *LATER, Mode(train=False), *ONCE), [""]),
        ((Forward(sync=False), Forward(sync=False), Backward(), Mode(train=False), *ONCE), []),
        ((*ONCE, *ONCE), []),
    ],
)
def test_an_all_reduce_waits_while_other_parameters_get_gradients(
    program: tuple[Op, ...], expected: list[str]
) -> None:
    waiting: dict[str, Any] = {
        "mesh": Mesh(replicate=2, shard=1),
        "micro_batches": MicroBatches(all_reduce_only=True),
    }
    assert having(case(fsdp2(""), program, **waiting), "deferred_apart") == expected
    assert having(case(fsdp2(""), program), "deferred_apart") == []


def test_units_are_sharded_at_the_end_unless_nothing_was_gone_back_through() -> None:
    first = ("layers.0.weight", "layers.0.bias")
    given = case(fsdp2("", "layers.0"), (*ONCE, Step()), frozen=SECOND)
    assert settled(anatomy(given))
    assert not settled(anatomy(replace(given, frozen=(*first, *SECOND))))


def test_a_unit_of_fsdp1_may_prefetch_in_forward_where_none_is_left_out() -> None:
    plan = fsdp1("", forward_prefetch=True)
    assert isinstance(plan, Fsdp1Plan)
    assert is_sound(case(plan, model=Sequential(children=TWO.children)))

"""Which collectives the structure of a case asks for, on two layers of 12 and 10 elements."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from fsdpfuzz.case import (
    Activation,
    Backward,
    CaseSpec,
    Checkpoint,
    Dense,
    Flip,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Idle,
    Linear,
    Node,
    Op,
    Repeat,
    RequiresGrad,
    Sequential,
    StateDict,
    Step,
    Switch,
    Tie,
    anatomy,
)
from fsdpfuzz.case.mesh import Mesh
from fsdpfuzz.case.micro_batches import MicroBatches
from fsdpfuzz.case.operations import FullParams
from fsdpfuzz.case.reduce_scatter import ReduceScatter
from fsdpfuzz.case.units import Precision
from fsdpfuzz.expect import Traffic, traffic

TWO = Sequential(children=(Linear(out=4), Linear(out=2)))
"""Shards of 6 and 5 elements on two ranks."""
SIX, FIVE = "all_gather float32 6", "all_gather float32 5"
TWELVE, TEN = "reduce_scatter float32 12", "reduce_scatter float32 10"
AGAIN = Repeat(body=Linear(out=2), times=2)
ITERATION: tuple[Op, ...] = (Forward(), Backward())


def first(*paths: str, **options: Any) -> Fsdp1Plan:
    return Fsdp1Plan(units=tuple(Fsdp1Unit(path=path, **options) for path in paths))


def second(*paths: str, **options: Any) -> Fsdp2Plan:
    return Fsdp2Plan(units=tuple(Fsdp2Unit(path=path, **options) for path in paths))


def promised(
    plan: Fsdp1Plan | Fsdp2Plan,
    program: tuple[Op, ...] = ITERATION,
    *,
    model: Node = TWO,
    settled: bool = True,
    own: bool = False,
    world_size: int = 2,
    **changes: Any,
) -> dict[int, Traffic]:
    case = CaseSpec(
        world_size=world_size,
        model=model,
        inputs=Dense(width=2),
        plan=plan,
        program=program,
        **changes,
    )
    return dict(traffic(anatomy(case), 0, settled=settled, own=own))


def numbers(found: dict[int, Traffic]) -> list[dict[str, str]]:
    """For each operation how many of each collective, those left out of which there are none."""
    return [
        {text: str(number) for text, number in each.numbers.items() if number.most}
        for each in found.values()
    ]


def once(*texts: str) -> dict[str, str]:
    return dict.fromkeys(texts, "1")


def test_a_path_left_behind_may_be_gathered_in_its_old_turn() -> None:
    paths = Switch(children=(Linear(out=2, bias=False), Linear(out=2)))
    plan = second("branches.0", "branches.1", "", reshard_after_forward=True)
    program = (Forward(grad=False), Flip(path="", ranks=(0, 1)), *ITERATION)
    found = promised(plan, program, model=paths)
    assert numbers(found)[-1]["all_gather float32 2"] == "at least 0"
    assert numbers(promised(plan, program[1:], model=paths))[-1].keys() == {
        "all_gather float32 3",
        "reduce_scatter float32 6",
    }


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (first("0", "1", ""), [once(SIX, FIVE), once(SIX, FIVE, TWELVE, TEN)]),
        (first("0", ""), [once(SIX, FIVE), once(SIX, TWELVE, TEN)]),
        (
            first("0", "", sharding="SHARD_GRAD_OP"),
            [once(SIX, FIVE), once(TWELVE, TEN)],
        ),
        (
            first("0", "", sharding="NO_SHARD"),
            [{}, once("all_reduce float32 12", "all_reduce float32 10")],
        ),
        (second("0", ""), [once(SIX, FIVE), once(SIX, TWELVE, TEN)]),
        (second("0", "", reshard_after_forward=False), [once(SIX, FIVE), once(TWELVE, TEN)]),
        (
            second("0", "", reshard_after_forward=True),
            [once(SIX, FIVE), once(SIX, FIVE, TWELVE, TEN)],
        ),
    ],
)
def test_what_is_gathered_and_reduced_follows_from_the_strategy(
    plan: Fsdp1Plan | Fsdp2Plan, expected: list[dict[str, str]]
) -> None:
    assert numbers(promised(plan)) == expected


@pytest.mark.parametrize("plan", [first, second])
def test_precision_says_in_which_dtype(plan: Any) -> None:
    half = Precision(param="bfloat16")
    gathered, reduced = "all_gather bfloat16 6", "reduce_scatter {} 12"
    for precision, dtype in (
        (half, "bfloat16"),
        (Precision(param="bfloat16", reduce="float32"), "float32"),
    ):
        found = numbers(promised(plan("0", "1", "", precision=precision)))
        assert gathered in found[0]
        assert reduced.format(dtype) in found[1]
    assert (
        reduced.format("float16")
        in numbers(promised(plan("0", "1", "", precision=Precision(reduce="float16"))))[1]
    )


@pytest.mark.parametrize("plan", [first, second])
def test_frozen_units_are_gathered_and_not_reduced(plan: Any) -> None:
    frozen = ("1.weight", "1.bias")
    found = numbers(promised(plan("0", "1", ""), frozen=frozen))
    assert found == [once(SIX, FIVE), once(SIX, FIVE, TWELVE)]


def test_backward_may_pass_by_what_is_frozen_in_front() -> None:
    frozen = ("0.weight", "0.bias")
    assert numbers(promised(first("0", "1", ""), frozen=frozen))[1] == once(FIVE, TEN)
    # fsdp2 prefetches the unit that comes before in its order, wanted or not.
    assert numbers(promised(second("0", "1", ""), frozen=frozen))[1] == {
        SIX: "0 to 1",
        **once(FIVE, TEN),
    }


@pytest.mark.parametrize(
    ("plan", "later"),
    [
        (first("0", ""), [once(SIX, FIVE), once(SIX, TWELVE, TEN)]),
        (first("0", "", sharding="SHARD_GRAD_OP"), [{}, once(TWELVE, TEN)]),
        (second("0", ""), [once(SIX, FIVE), once(SIX, TWELVE, TEN)]),
    ],
)
def test_without_synchronisation_nothing_is_reduced(
    plan: Fsdp1Plan | Fsdp2Plan, later: list[dict[str, str]]
) -> None:
    found = numbers(promised(plan, (Forward(sync=False), Backward(), *ITERATION)))
    assert not any("reduce" in text for text in found[1])
    assert found[2:] == later


def test_what_waited_for_its_reduction_is_reduced_though_it_was_frozen_since() -> None:
    freeze = RequiresGrad(parameters=("0.weight",), value=False)
    found = promised(second("0", ""), (Forward(sync=False), Backward(), freeze, *ITERATION))
    assert numbers(found)[-1][TWELVE] == "1"
    found = promised(second("0", ""), (freeze, *ITERATION))
    # Only the bias.
    assert numbers(found)[-1]["reduce_scatter float32 4"] == "1"


def test_replicas_add_up_what_the_shards_have() -> None:
    mesh = Mesh(replicate=2, shard=2)
    for plan in (first("0", "1", "", sharding="HYBRID_SHARD"), second("0", "1", "")):
        found = numbers(promised(plan, world_size=4, mesh=mesh))
        assert found[1] == once(
            SIX, FIVE, TWELVE, TEN, "all_reduce float32 6", "all_reduce float32 5"
        )


def test_a_smaller_mesh_is_gathered_from_in_backward() -> None:
    plan = second("0", "1", "", reshard_after_forward=2)
    found = numbers(promised(plan, world_size=4))
    # Rows are padded to four; then what one rank in two has of them.
    assert found[0] == once("all_gather float32 3", FIVE)
    assert {text for text in found[1] if "gather" in text} == {SIX, "all_gather float32 10"}


def test_a_unit_that_backward_passes_by_stays_on_the_smaller_mesh() -> None:
    plan = second("", reshard_after_forward=2)
    evaluation = Forward(grad=False)
    program = (Forward(), Forward(), Backward(), evaluation)
    frozen = ("weight", "bias")
    found = numbers(
        promised(plan, program, model=Linear(out=2), world_size=4, frozen=frozen),
    )
    # Two rows of three elements, each padded to four rows; of them, what a rank in two has.
    whole, part = "all_gather float32 3", "all_gather float32 6"
    assert found[0] == once(whole)
    assert found[1] == found[3] == once(part)
    # What backward reaches is sharded over all ranks again, however often it was gathered.
    found = numbers(promised(plan, program, model=Linear(out=2), world_size=4))
    assert found[3] == once(whole)


def test_a_flat_parameter_is_gathered_with_what_pads_it() -> None:
    model = Sequential(children=(Linear(out=3), Linear(out=2)))
    found = numbers(promised(first("0", "", use_orig_params=True), model=model))
    # The biases begin behind 8 elements.
    assert found[0] == once(SIX, FIVE)
    found = numbers(promised(second("0", ""), model=model))
    # Three rows on two ranks, then two.
    assert found[0] == {SIX: "1", "all_gather float32 4": "1"}


@pytest.mark.parametrize(
    ("plan", "settled", "expected"),
    [
        (first("0", "1", ""), True, "1 to 2"),
        (first("0", "1", "", sharding="SHARD_GRAD_OP"), True, None),
        (second("0", "1", ""), True, "1"),
        (second("0", "1", ""), False, "at least 1"),
    ],
)
def test_recomputation_around_units(
    plan: Fsdp1Plan | Fsdp2Plan, *, settled: bool, expected: str | None
) -> None:
    found = promised(plan, checkpoints=(Checkpoint(path=""),), settled=settled)
    assert numbers(found)[1].get(SIX) == expected


@pytest.mark.parametrize(
    ("own", "precision", "dtype"),
    [
        (False, Precision(param="bfloat16"), "bfloat16"),
        (True, Precision(param="bfloat16"), "float32"),
        (True, Precision(param="bfloat16", reduce="bfloat16"), "bfloat16"),
    ],
)
def test_newer_fsdp2_reduces_in_the_parameters_own_dtype(
    own: bool, precision: Precision, dtype: str
) -> None:
    found = numbers(promised(second("", precision=precision), own=own))[1]
    assert [t.split()[1] for t in found if t.startswith("reduce_scatter")] == [dtype]
    older = numbers(promised(first("", precision=precision), own=own))[1]
    kept = precision.reduce or precision.param
    assert [t.split()[1] for t in older if t.startswith("reduce_scatter")] == [kept]


def test_of_an_older_root_told_a_number_of_ranks_nothing_is_promised() -> None:
    plan = second("", reshard_after_forward=2)
    assert promised(plan, world_size=4)
    assert promised(plan, world_size=4, settled=False) == {}
    assert promised(second("", reshard_after_forward=True), world_size=4, settled=False)


def test_recomputation_within_a_unit_is_free() -> None:
    for side in ("inside", "around"):
        own = Checkpoint(path="0", side=side)
        found = numbers(promised(first("0", "1", ""), checkpoints=(own,)))
        assert found[1] == once(SIX, FIVE, TWELVE, TEN)


def test_a_unit_called_twice_is_gathered_twice() -> None:
    model, shard, reduced = AGAIN, "all_gather float32 3", "reduce_scatter float32 6"
    found = numbers(promised(first("body", ""), model=model))
    assert found == [{shard: "2"}, once(shard, reduced)]
    found = numbers(promised(second("body", ""), model=model))
    assert found == [{shard: "2"}, {shard: "at least 1", reduced: "1"}]
    # What waits is reduced when the last call is done, the rest when the first one is.
    program = (Forward(sync=False), Backward(), *ITERATION)
    found = numbers(promised(second("body", ""), program, model=model))
    assert found[3][reduced] == "at least 0"


def test_a_forward_without_backward_leaves_the_root_whole() -> None:
    program = (Forward(grad=False), Forward(grad=False), StateDict(), Forward(grad=False))
    for plan in (first("0", ""), second("0", "")):
        found = numbers(promised(plan, program))
        # Saving may reshard what it finds whole.
        assert found == [once(SIX, FIVE), once(SIX), {SIX: "1", FIVE: "0 to 1"}]


def test_the_order_of_ranks_is_compared_up_to_the_first_backward() -> None:
    found = numbers(promised(first("0", ""), (*ITERATION, *ITERATION), debug_level="DETAIL"))
    compared = "all_gather int32 1"
    assert [each.get(compared) for each in found] == ["0 to 4", None, None, None]
    whole = first("0", "", sharding="NO_SHARD")
    found = numbers(promised(whole, checkpoints=(Checkpoint(path=""),), debug_level="DETAIL"))
    # Recomputation of the root calls the other unit again.
    assert [each.get(compared) for each in found] == ["0 to 4", "0 to 2"]


def test_forward_gathers_in_the_order_of_calls() -> None:
    assert promised(first("0", "1", ""))[0].order == (SIX, FIVE)
    assert promised(second("0", ""))[0].order == (FIVE, SIX)
    assert promised(second("body", ""), model=AGAIN)[0].order == ()
    # Which of two equal ones comes first nobody can tell.
    square = Sequential(children=(Linear(out=2), Linear(out=2)))
    assert promised(second("0", "1"), model=square)[0].order == ()


def test_backward_gathers_the_next_unit_before_it_reduces() -> None:
    for plan in (
        first("0", "1", ""),
        first("0", "1", "", backward_prefetch="BACKWARD_POST"),
        second("0", "1", ""),
    ):
        reduced = ((TEN, TWELVE),) if isinstance(plan, Fsdp2Plan) else ()
        assert promised(plan)[1].early == ((SIX, TEN), *reduced)
        assert promised(plan, checkpoints=(Checkpoint(path="0"),))[1].early == ()
        assert promised(plan, (Forward(grad=False), *ITERATION))[2].early == ()
        assert promised(plan, (Forward(sync=False), Backward()))[1].early == ()
    assert promised(first("0", "1", "", backward_prefetch=None))[1].early == ()
    square = Sequential(children=(Linear(out=2), Linear(out=2), Linear(out=2)))
    pairs = promised(second("0", "1", "2", ""), model=square)[1].early
    assert pairs == ()


def test_after_the_wrong_calls_fsdp2_gathers_in_vain() -> None:
    found = numbers(promised(second("0", "1", ""), (Forward(grad=False), *ITERATION)))
    assert found[2] == {SIX: "at least 1", FIVE: "at least 1", **once(TWELVE, TEN)}


def test_a_root_that_backward_passes_by_may_stay_as_recomputation_left_it() -> None:
    plan, frozen = second("0", "1", reshard_after_forward=True), ("0.weight", "0.bias")
    found = numbers(promised(plan, ITERATION * 2, frozen=frozen))
    assert found[2] == once(SIX, FIVE)
    again = (Checkpoint(path=""),)
    found = numbers(promised(plan, ITERATION * 2, frozen=frozen, checkpoints=again))
    assert found[2] == {SIX: "0 to 1", FIVE: "1"}


def test_nothing_is_promised_once_a_whole_unit_is_thawed() -> None:
    thaw = RequiresGrad(parameters=("0.weight",), value=True)
    program = (Forward(grad=False), thaw, *ITERATION)
    assert set(promised(second("0", ""), program, frozen=("0.weight",))) == {0}


def nothing_promised() -> Iterable[dict[int, Traffic]]:
    tie = Tie(source="0.weight", target="1.weight")
    square = Sequential(children=(Linear(out=2), Linear(out=2)))
    yield promised(first("0", "1", ""), model=square, ties=(tie,))
    yield promised(first("0", "1", ""), world_size=1)
    idle = Sequential(children=(Linear(out=3), Idle()))
    yield promised(second("1", ""), model=idle)
    yield promised(first("0", ""), (Forward(drop=True), *ITERATION))
    yield promised(first("0", ""), (Forward(target="0"), *ITERATION))
    unreduced: tuple[Op, ...] = (Forward(sync=False), Backward(), *ITERATION)
    yield promised(second("0", ""), unreduced, micro_batches=MicroBatches(keep_whole=True))
    part = Sequential(children=(Sequential(children=(Linear(out=3), Activation())), Linear(out=2)))
    yield promised(first(""), model=part, checkpoints=(Checkpoint(path="0", reentrant=True),))
    yield promised(second("0", ""), reduce_scatter=ReduceScatter(unused=True))


def test_nothing_is_promised_where_fsdp_promises_nothing() -> None:
    assert list(nothing_promised()) == [{}] * 8
    buffers = ReduceScatter(buffers=2)
    assert promised(second("0", ""), reduce_scatter=buffers) == promised(second("0", "")) != {}


def test_of_steps_nothing_is_said() -> None:
    assert set(promised(first("0", ""), (*ITERATION, Step(), *ITERATION))) == {0, 1, 3, 4}


def test_a_root_that_is_called_once_more_may_prefetch_what_is_through() -> None:
    around = Checkpoint(path="", side="around")
    plan = first("0", "1", "", sharding="SHARD_GRAD_OP", forward_prefetch=True)
    assert promised(plan, checkpoints=(around, Checkpoint(path="0"))) == {}
    assert [*promised(plan, checkpoints=(Checkpoint(path=""), Checkpoint(path="0")))] == [0, 1]
    usual = first("0", "1", "", sharding="SHARD_GRAD_OP")
    assert [*promised(usual, checkpoints=(around, Checkpoint(path="0")))] == [0, 1]


@pytest.mark.parametrize("look", [FullParams(), StateDict(), StateDict(form="sharded")])
def test_a_look_at_full_precision_frees_what_is_whole_in_a_lower_one(look: Op) -> None:
    program = (Forward(grad=False), look, Forward(grad=False))
    lower = numbers(promised(first("", precision=Precision(param="bfloat16")), program))
    assert lower == [{"all_gather bfloat16 11": "1"}] * 2
    assert numbers(promised(first(""), program))[1] == {"all_gather float32 11": "0 to 1"}

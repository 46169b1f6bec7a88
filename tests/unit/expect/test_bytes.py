"""The bytes of shards and gradients, against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fsdpfuzz.case import (
    Anatomy,
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
    Linear,
    Op,
    Plan,
    Precision,
    Sequential,
    Step,
    Switch,
    Tie,
    ZeroGrad,
    anatomy,
)
from fsdpfuzz.expect import (
    grad_bytes,
    grads_known,
    managed_bytes,
    settled,
    shard_bytes,
    steps_after_backward,
    unit_numel,
)

TRAIN: tuple[Op, ...] = (Forward(), Backward(), Step())
"""Weights 5 x 3 and 2 x 5, biases 5 and 2: 32 elements."""


def case(plan: Plan, program: tuple[Op, ...] = TRAIN, **changes: object) -> Anatomy:
    options: dict[str, object] = {
        "world_size": 2,
        "model": Sequential(children=(Linear(out=5), Linear(out=2))),
        "inputs": Dense(width=3),
        "plan": plan,
        "program": program,
    }
    return anatomy(CaseSpec(**(options | changes)))  # type: ignore[arg-type]


def fsdp1(**options: object) -> Fsdp1Plan:
    return Fsdp1Plan(units=(msgspec.structs.replace(Fsdp1Unit(path=""), **options),))


FSDP2 = Fsdp2Plan(units=(Fsdp2Unit(path="0"), Fsdp2Unit(path="")))


def test_fsdp2_cuts_dimension_0_and_pads_storage() -> None:
    # chunks of 3, 3, 1 and 1 rows: 9 + 3 + 5 + 1 elements
    assert shard_bytes(case(FSDP2)) == 4 * 18
    assert grad_bytes(case(FSDP2), 0) == 4 * 18
    assert grad_bytes(case(FSDP2), 1) == 4 * (6 + 2 + 5 + 1)


def test_what_no_unit_manages_is_whole_on_each_rank() -> None:
    open_root = case(Fsdp2Plan(units=(Fsdp2Unit(path="0"),)))
    assert shard_bytes(open_root) == 4 * (9 + 3 + 12)
    assert managed_bytes(open_root) == 4 * (9 + 3)
    ignoring = case(Fsdp2Plan(units=(Fsdp2Unit(path="", ignored=("1",)),)))
    assert shard_bytes(ignoring) == 4 * (9 + 3 + 12)


def test_fsdp1_cuts_one_flat_parameter() -> None:
    assert shard_bytes(case(fsdp1())) == 4 * 16
    assert grad_bytes(case(fsdp1()), 1) == 4 * 16
    assert shard_bytes(case(fsdp1(sharding="NO_SHARD"))) == 4 * 32


@pytest.mark.parametrize(
    ("precision", "aligned"),
    # starts at multiples of 16 bytes: 15 + (1) + 5 + (3) + 10 + (2) + 2, then to a multiple of 2
    [(None, 38), (Precision(param="bfloat16"), 15 + 1 + 5 + 3 + 10 + 6 + 2)],
)
def test_fsdp1_aligns_original_parameters(precision: Precision | None, aligned: int) -> None:
    plan = fsdp1(use_orig_params=True, precision=precision)
    assert shard_bytes(case(plan)) == 4 * aligned // 2


def test_fsdp1_pads_the_end_of_original_parameters_to_the_ranks() -> None:
    odd = case(fsdp1(use_orig_params=True, sharding="NO_SHARD"), model=Linear(out=5))
    assert shard_bytes(odd) == 4 * (15 + 1 + 5 + 1)


def test_fsdp1_has_gradients_of_its_part_of_each_original_parameter() -> None:
    plan = fsdp1(use_orig_params=True)
    # 38 in two parts of 19: 15 and 3 of 5 on rank 0, 2 of 5, 10 and 2 on rank 1
    assert [grad_bytes(case(plan), rank) for rank in (0, 1)] == [4 * 18, 4 * 14]
    frozen = case(plan, frozen=("0.weight",))
    assert [grad_bytes(frozen, rank) for rank in (0, 1)] == [4 * 3, 4 * 14]


@pytest.mark.parametrize("keep", [False, True])
def test_gradients_that_are_kept_low_have_an_unknown_width(keep: bool) -> None:
    """FSDP1 leaves them in ``param_dtype``, and where it does not shard in ``reduce_dtype``."""
    low = Precision(param="bfloat16", reduce="float32", keep_low_grads=keep)
    assert grads_known(case(fsdp1(precision=low), (Forward(), Backward()))) is not keep


def test_a_tied_parameter_counts_once() -> None:
    square: dict[str, Any] = {
        "model": Sequential(children=(Linear(out=4, bias=False), Linear(out=4, bias=False))),
        "inputs": Dense(width=4),
        "ties": (Tie(source="0.weight", target="1.weight"),),
    }
    whole = case(Fsdp2Plan(units=(Fsdp2Unit(path=""),)), **square)
    assert shard_bytes(whole) == 4 * 8
    assert settled(whole)
    split = Fsdp2Plan(units=(Fsdp2Unit(path="0"), Fsdp2Unit(path="1")))
    assert not settled(case(split, **square))


def test_the_largest_unit() -> None:
    assert unit_numel(case(FSDP2)) == 20


@pytest.mark.parametrize(
    ("program", "answer"),
    [
        (TRAIN, True),
        ((*TRAIN, Forward()), False),
        ((*TRAIN, Forward(grad=False)), False),
        ((Forward(sync=False), Backward()), False),
        ((Forward(sync=False), Backward(), *TRAIN), True),
    ],
)
def test_settled(program: tuple[Op, ...], answer: bool) -> None:
    assert settled(case(FSDP2, program)) is answer


def test_nothing_is_settled_where_ranks_may_differ() -> None:
    forked = case(
        Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
        (*TRAIN, Flip(path="", ranks=(1,)), *TRAIN),
        model=Switch(children=(Linear(out=2), Linear(out=2))),
    )
    assert not settled(forked)


@pytest.mark.parametrize(
    ("program", "answer"),
    [
        (TRAIN, True),
        ((*TRAIN, ZeroGrad()), False),
        ((*TRAIN, ZeroGrad(set_to_none=False)), True),
        ((Forward(target="0"), Backward()), False),
    ],
)
def test_grads_known(program: tuple[Op, ...], answer: bool) -> None:
    assert grads_known(case(FSDP2, program)) is answer


def test_steps_count_once_there_is_a_gradient() -> None:
    assert steps_after_backward(case(FSDP2, (Step(), *TRAIN, Step()))) == 2


@pytest.mark.parametrize(
    ("reentrant", "requires_grad", "answer"),
    [(True, False, False), (True, True, True), (False, False, True)],
)
def test_a_reentrant_checkpoint_needs_inputs_that_require_grad(
    reentrant: bool, requires_grad: bool, answer: bool
) -> None:
    recomputed = case(
        FSDP2,
        TRAIN,
        checkpoints=(Checkpoint(path="", reentrant=reentrant),),
        inputs=Dense(width=3, requires_grad=requires_grad),
    )
    assert grads_known(recomputed) is answer

"""How often activations are offloaded, and which keys a state dict has on which rank."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import (
    Anatomy,
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
    Lora,
    Node,
    Op,
    Plan,
    Rebuild,
    Repeat,
    Sequential,
    StateDict,
    Switch,
    anatomy,
)
from fsdpfuzz.expect import (
    checkpoint_entries,
    is_cut,
    offload_entries,
    optional_keys,
    state_keys,
)

TWO = Sequential(children=(Linear(out=2), Linear(out=2, bias=False)))
THRICE = Repeat(body=Linear(out=2), times=3, no_grad="body")
FORK = Switch(children=(Linear(out=2), Linear(out=2)))
ROOT = Fsdp2Plan(units=(Fsdp2Unit(path=""),))
PLAIN = ("0.bias", "0.weight", "1.weight")


def case(
    model: Node = TWO,
    *checkpoints: Checkpoint,
    plan: Plan = ROOT,
    program: tuple[Op, ...] = (Forward(),),
    world_size: int = 2,
) -> Anatomy:
    made = CaseSpec(
        world_size=world_size,
        model=model,
        inputs=Dense(width=2),
        plan=plan,
        checkpoints=checkpoints,
        program=program,
    )
    return anatomy(made)


@pytest.mark.parametrize(
    ("a", "entries"),
    [
        (case(TWO), (0,)),
        (case(TWO, Checkpoint(path="0")), (0,)),
        (case(TWO, Checkpoint(path="0", kind="offload")), (1,)),
        (case(TWO, Checkpoint(path="0", kind="function_offload")), (1,)),
        # An offload wrapper is entered by every call, a caller asks only where it records.
        (case(THRICE, Checkpoint(path="body", kind="offload")), (6,)),
        (case(THRICE, Checkpoint(path="body", kind="function_offload")), (3,)),
        (
            case(
                TWO,
                Checkpoint(path="1", kind="offload"),
                program=(Forward(target="0"), Forward()),
            ),
            (0, 1),
        ),
        # A module that has no node of its own is called by the program as any other is.
        (
            case(
                Lora(out=2),
                Checkpoint(path="base", kind="offload"),
                program=(Forward(target="base"), Forward(target="down"), Forward()),
            ),
            (1, 0, 1),
        ),
        (
            case(
                Lora(out=2),
                Checkpoint(path="down", kind="function_offload"),
                program=(Forward(target="base"), Forward(target="down"), Forward()),
            ),
            (0, 1, 1),
        ),
    ],
)
def test_each_call_of_an_offloaded_module_is_an_entry(a: Anatomy, entries: tuple[int, ...]) -> None:
    assert offload_entries(a, 0) == entries


@pytest.mark.parametrize(
    ("a", "plain", "reentrant"),
    [
        (case(TWO), (0,), (0,)),
        (case(TWO, Checkpoint(path="0", kind="offload")), (0,), (0,)),
        (case(TWO, Checkpoint(path="0"), Checkpoint(path="1", kind="composable")), (2,), (0,)),
        (case(TWO, Checkpoint(path="0"), Checkpoint(path="1", reentrant=True)), (1,), (1,)),
        (case(TWO, Checkpoint(path="0", kind="function_offload")), (1,), (0,)),
        # A wrapper is entered by every call, a caller asks only where it records.
        (case(THRICE, Checkpoint(path="body")), (6,), (0,)),
        (case(THRICE, Checkpoint(path="body", kind="function")), (3,), (0,)),
        (case(THRICE, Checkpoint(path="body", kind="function_offload")), (3,), (0,)),
    ],
)
def test_each_call_of_a_checkpointed_module_is_an_entry(
    a: Anatomy, plain: tuple[int, ...], reentrant: tuple[int, ...]
) -> None:
    assert checkpoint_entries(a, 0, reentrant=False) == plain
    assert checkpoint_entries(a, 0, reentrant=True) == reentrant


def test_entries_are_those_of_the_rank_s_own_path() -> None:
    flip = Flip(path="", ranks=(1,))
    offload = Checkpoint(path="branches.1", kind="offload")
    a = case(FORK, offload, program=(Forward(), flip, Forward()))
    assert [offload_entries(a, rank) for rank in (0, 1)] == [(0, 0), (0, 1)]


def test_who_looks_for_a_checkpoint_hangs_on_the_plan_of_the_time() -> None:
    """At a unit the module itself enters it; where a rebuild makes it no unit, its caller."""
    plan = Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="body")))
    checkpoint = Checkpoint(path="body", kind="function")
    program = (Forward(), Rebuild(plan=ROOT), Forward())
    a = case(THRICE, checkpoint, plan=plan, program=program)
    assert checkpoint_entries(a, 0, reentrant=False) == (6, 3)


def test_a_state_dict_has_the_plain_models_keys() -> None:
    full = StateDict()
    assert state_keys(case(), PLAIN, full, absent=False) == set(PLAIN)
    assert state_keys(case(), PLAIN, full, absent=True) == set()


def test_a_local_one_has_flat_parameters() -> None:
    plan = Fsdp1Plan(units=(Fsdp1Unit(path="0"), Fsdp1Unit(path="1", sharding="NO_SHARD")))
    a, local = case(plan=plan), StateDict(form="local")
    assert (is_cut(a, "0"), is_cut(a, "1")) == (True, False)
    assert state_keys(a, PLAIN, local, absent=False) == {"0._flat_param", "1.weight"}
    assert not is_cut(case(plan=plan, world_size=1), "0")


def test_what_is_whole_may_be_there_where_nothing_must_be() -> None:
    no_shard = Fsdp1Plan(units=(Fsdp1Unit(path="0"), Fsdp1Unit(path="1", sharding="NO_SHARD")))
    assert optional_keys(case(plan=no_shard), PLAIN, absent=True) == {"1.weight"}
    open_root = Fsdp2Plan(units=(Fsdp2Unit(path="0"),))
    assert optional_keys(case(plan=open_root), PLAIN, absent=True) == {"1.weight"}
    assert optional_keys(case(plan=open_root), PLAIN, absent=False) == set()

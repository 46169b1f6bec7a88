"""The seeds of documents 001 and 004, against names and sizes written from the documents."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import (
    Forward,
    Fsdp1Plan,
    Fsdp2Plan,
    StateDict,
    anatomy,
    check,
    decode,
    digest,
    encode,
)
from fsdpfuzz.seeds import MEMORY, STATE_DICT, Seed, fitting

ROOT, SUBMODULES, FLOW, MIXED = (
    "001: test_state_dict_save_load_root_fully_shard",
    "001: test_state_dict_save_load_submodule_fully_shard",
    "001: test_state_dict_save_load_flow",
    "001: test_full_state_dict_save_load_mixed_sharding",
)
GROUPS, NON_ROOT, CHECKPOINTED = (
    "004: test_tracker_multi_group_eager",
    "004: test_tracker_non_root_forward_backward",
    "004: test_tracker_with_activation_checkpointing",
)
PRECISION = "mp_policy=float16/float32"

NAMES = (
    f"{ROOT}[]",
    f"{SUBMODULES}[]",
    f"{FLOW}[ignore_modules=False,sharded_state_dict=False]",
    f"{FLOW}[ignore_modules=False,sharded_state_dict=True]",
    f"{FLOW}[ignore_modules=True,sharded_state_dict=False]",
    f"{FLOW}[ignore_modules=True,sharded_state_dict=True]",
    f"{MIXED}[]",
    f"{GROUPS}[reshard_after_forward=True,offload_policy=CPUOffloadPolicy,{PRECISION}]",
    f"{GROUPS}[reshard_after_forward=True,offload_policy=OffloadPolicy,{PRECISION}]",
    f"{GROUPS}[reshard_after_forward=False,offload_policy=CPUOffloadPolicy,{PRECISION}]",
    f"{GROUPS}[reshard_after_forward=False,offload_policy=OffloadPolicy,{PRECISION}]",
    f"{NON_ROOT}[]",
    f"{CHECKPOINTED}[reshard_after_forward=True,checkpoint_impl=composable]",
    f"{CHECKPOINTED}[reshard_after_forward=True,checkpoint_impl=wrapper]",
    f"{CHECKPOINTED}[reshard_after_forward=False,checkpoint_impl=composable]",
    f"{CHECKPOINTED}[reshard_after_forward=False,checkpoint_impl=wrapper]",
)
SEEDS = {seed.name: seed for seed in (*STATE_DICT, *MEMORY)}


def numel(seed: Seed) -> int:
    return sum(p.numel for p in anatomy(seed.case).distinct)


def test_every_parametrisation_is_there_once() -> None:
    assert tuple(seed.name for seed in (*STATE_DICT, *MEMORY)) == NAMES
    cases = [case for seed in SEEDS.values() for case in (seed.case, seed.small) if case]
    assert len({digest(case) for case in cases}) == len(cases) == 7 + 2 * 9


@pytest.mark.parametrize("seed", SEEDS.values(), ids=lambda seed: seed.name)
def test_every_seed_is_a_case(seed: Seed) -> None:
    for case in (seed.case, seed.small):
        if case is not None:
            check(case)
            assert decode(encode(case)) == case


@pytest.mark.parametrize("name", [f"{ROOT}[]", f"{SUBMODULES}[]", f"{MIXED}[]"])
def test_the_composite_model(name: str) -> None:
    seed = SEEDS[name]
    # a linear layer, two units of three, and a parameter, each 100 wide
    assert numel(seed) == 7 * (100 * 100 + 100) + 100 * 100
    assert sum(len(place.buffers) for place in anatomy(seed.case).places) == 1
    assert seed.case.program == (StateDict(),)
    first, (variant,) = seed.case.plan, seed.case.twins
    assert isinstance(first, Fsdp1Plan)
    assert isinstance(variant.plan, Fsdp2Plan)


def test_which_modules_are_units() -> None:
    def paths(name: str) -> tuple[str, ...]:
        return anatomy(SEEDS[name].case).units

    assert paths(f"{ROOT}[]") == ("", "body.1", "body.2")
    assert paths(f"{SUBMODULES}[]") == ("body.1", "body.2")
    assert paths(f"{MIXED}[]") == ("", "body.1")
    assert len(paths(f"{FLOW}[ignore_modules=False,sharded_state_dict=True]")) == 1 + 4
    assert paths(f"{FLOW}[ignore_modules=True,sharded_state_dict=True]") == ("",)


def test_memory_seeds_have_the_documents_sizes() -> None:
    mlp = 2048 * 8192 * 2 + 8192 + 2048
    for name, seed in SEEDS.items():
        if name.startswith(GROUPS):
            assert (numel(seed), seed.case.inputs.batch) == (4 * mlp, 8192)
        elif name.startswith(NON_ROOT):
            assert (numel(seed), seed.case.inputs.batch) == (3 * mlp, 8)
            targets = {op.target for op in seed.case.program if isinstance(op, Forward)}
            assert targets == {"0"}
        elif name.startswith(CHECKPOINTED):
            assert (seed.case.inputs.batch, seed.case.inputs.length) == (16, 512)
            assert len(seed.case.checkpoints) == 4
    for seed in MEMORY:
        assert [op.kind() for op in seed.case.program] == [
            *("forward", "backward", "step", "zero_grad"),
            *("forward", "backward", "step", "zero_grad"),
        ]


@pytest.mark.parametrize("seed", MEMORY, ids=lambda seed: seed.name)
def test_the_small_form_differs_in_size_alone(seed: Seed) -> None:
    small = seed.small
    assert small is not None
    for field in ("plan", "checkpoints", "optimizer", "program", "loss", "probes", "ties"):
        assert getattr(small, field) == getattr(seed.case, field)
    kinds = [place.kind for place in anatomy(small).places]
    assert kinds == [place.kind for place in anatomy(seed.case).places]


def test_a_machine_without_gpus_runs_the_small_form() -> None:
    seed = MEMORY[0]
    assert seed.on("nccl") == seed.case
    assert seed.on("gloo") == seed.small
    assert fitting(seed.case, MEMORY, "gloo") == seed.small
    other = STATE_DICT[0].case
    assert fitting(other, MEMORY, "gloo") == other
    bare = Seed(document="004", test="t", params="", case=other, needs=("a GPU",))
    assert bare.on("gloo") is None

"""Under fsdp1: which part of a parameter a rank holds, and which part of the whole that is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy

from fsdpfuzz.steps import judging
from fsdpfuzz.steps.fsdp1 import shards
from fsdpfuzz.steps.fsdp1.state_dict import taken_apart
from fsdpfuzz.steps.modules.transposed import Transposed
from tests.unit.steps.alone import CPU, RANKS, as_rank, gradients_of, uneven

NAMES = ("0.weight", "0.bias", "1.weight", "2.weight", "2.bias")


def wrapped(*, orig: bool, module: nn.Module | None = None) -> Any:
    """The flat parameter of a model that is one unit."""
    unit = FSDP(module or uneven(), use_orig_params=orig, device_id=CPU)
    assert unit._handle is not None
    return unit._handle.flat_param


def convolution() -> nn.Module:
    made = nn.Conv2d(2, 3, 3)
    made.weight.data = made.weight.data.contiguous(memory_format=torch.channels_last)
    return made


def held_of(flat: Any, name: str, *, orig: bool) -> Any:
    """What the optimizer holds."""
    return flat._params[flat._fqns.index(name)] if orig else flat


@pytest.mark.parametrize(("rank", "world_size"), RANKS)
@pytest.mark.parametrize("orig", [False, True])
def test_what_a_rank_holds_is_its_part_of_the_whole(rank: int, world_size: int, orig: bool) -> None:
    whole = uneven()
    with as_rank(rank, world_size):
        flat = wrapped(orig=orig)
        assert tuple(flat._fqns) == NAMES
        for name in NAMES:
            info = shards.info(flat, name, False)
            value = shards.value(held_of(flat, name, orig=orig), info, orig)
            assert torch.equal(value, shards.same_part(whole.get_parameter(name), info))


@pytest.mark.parametrize(("rank", "world_size"), RANKS)
@pytest.mark.parametrize("orig", [False, True])
@pytest.mark.parametrize("strategy", ["FULL_SHARD", "NO_SHARD"])
@pytest.mark.parametrize(
    ("make", "order"),
    [(partial(Transposed, 3, 4), (1, 0)), (convolution, (0, 2, 3, 1))],
    ids=["by columns", "channels last"],
)
def test_what_is_not_contiguous_is_cut_as_it_lies(
    rank: int,
    world_size: int,
    orig: bool,
    strategy: str,
    make: Callable[[], nn.Module],
    order: tuple[int, ...],
) -> None:
    module = make()
    whole = copy.deepcopy(module)
    with as_rank(rank, world_size):
        unit = FSDP(
            module,
            use_orig_params=orig,
            device_id=CPU,
            sharding_strategy=ShardingStrategy[strategy],
        )
        assert unit._handle is not None
        flat = unit._handle.flat_param
        for name, own in (("weight", order), ("bias", ())):
            info = shards.info(flat, name, False)
            held, right = held_of(flat, name, orig=orig), whole.get_parameter(name)
            value = shards.value(held, info, orig, own)
            assert torch.equal(value, shards.same_part(right, info, own))
            held.grad = -held.detach()
            assert torch.equal(shards.gradient(held, info, orig, False, own), -value)
            places = shards.places(right.shape, info, own)
            assert [right[k] for k in places[: len(value)]] == value.tolist()


@pytest.mark.parametrize("orig", [False, True])
@pytest.mark.parametrize("make", [partial(Transposed, 3, 4), convolution])
def test_a_whole_flat_parameter_is_taken_apart_as_it_lies(
    orig: bool, make: Callable[[], nn.Module]
) -> None:
    module = make()
    whole = copy.deepcopy(module)
    with as_rank(0, 1):
        unit = FSDP(module, use_orig_params=orig, device_id=CPU)
        assert unit._handle is not None
        flat = unit._handle.flat_param
        found = dict(taken_apart(flat, "", flat.detach()))
    assert found.keys() == dict(whole.named_parameters()).keys()
    for name, p in whole.named_parameters():
        assert torch.equal(found[name], p)


@pytest.mark.parametrize(("rank", "world_size"), RANKS)
@pytest.mark.parametrize("lacking", [False, True])
def test_the_gradient_of_a_flat_parameter_is_cut_in_the_same_way(
    rank: int, world_size: int, lacking: bool
) -> None:
    whole = gradients_of(uneven())
    with as_rank(rank, world_size):
        flat = wrapped(orig=False)
        flat.grad = torch.full_like(flat, -1.0)
        infos = {name: shards.info(flat, name, False) for name in NAMES}
        for name, info in infos.items():
            if info.in_shard:
                part = shards.same_part(whole[name], info)
                flat.grad[info.offset_in_shard :][: len(part)] = part
        for name, info in infos.items():
            seen = shards.gradient(flat, info, False, lacking)
            assert torch.equal(seen, shards.same_part(whole[name], info))


@pytest.mark.parametrize(("rank", "world_size"), RANKS)
def test_the_gradient_of_an_original_parameter_is_its_own(rank: int, world_size: int) -> None:
    whole = gradients_of(uneven())
    with as_rank(rank, world_size):
        flat = wrapped(orig=True)
        for name in NAMES:
            held, info = held_of(flat, name, orig=True), shards.info(flat, name, False)
            held.grad = shards.same_part(whole[name], info).view(held.shape)
            seen = shards.gradient(held, info, True, False)
            assert torch.equal(seen, shards.same_part(whole[name], info))


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("orig", [False, True])
def test_all_ranks_together_hold_every_element_once(world_size: int, orig: bool) -> None:
    parts: dict[str, list[Tensor]] = {name: [] for name in NAMES}
    sizes = set()
    for rank in range(world_size):
        with as_rank(rank, world_size):
            flat = wrapped(orig=orig)
            for name in NAMES:
                numbered = torch.arange(uneven().get_parameter(name).numel())
                part = shards.same_part(numbered, shards.info(flat, name, False))
                parts[name].append(part)
                sizes.add(len(part))
    for name, found in parts.items():
        whole = uneven().get_parameter(name)
        if world_size == 1:
            assert [len(part) for part in found] == [whole.numel()]
        assert torch.cat(found).tolist() == list(range(whole.numel()))
    assert (0 in sizes) is (world_size > 1)


@pytest.mark.parametrize("orig", [False, True])
def test_zeros_stand_for_a_gradient_that_is_not_there(orig: bool) -> None:
    with as_rank(1, 2):
        flat = wrapped(orig=orig)
        for name in NAMES:
            held, info = held_of(flat, name, orig=orig), shards.info(flat, name, False)
            seen = shards.gradient(held, info, orig, True)
            assert torch.equal(seen, torch.zeros(info.numel_in_shard or 0))
            with pytest.raises(AttributeError):
                shards.gradient(held, info, orig, False)


def test_wrappers_inside_of_a_unit_put_parts_into_the_names() -> None:
    model = uneven()
    assert isinstance(model, nn.Sequential)
    model[0] = checkpoint_wrapper(model[0])
    with as_rank(0, 2):
        flat = wrapped(orig=True, module=model)
        first = shards.info(flat, "0.weight", True)
        assert first is flat._shard_param_infos[0]
        assert shards.info(flat, "2.bias", True) is flat._shard_param_infos[-1]
        with pytest.raises(ValueError, match=r"0\.weight"):
            shards.info(flat, "0.weight", False)


def test_the_arithmetic_of_a_part() -> None:
    """Elements 2 and 3 of a parameter lie at 5 and 6 of the flat shard."""
    info = SimpleNamespace(offset_in_shard=5, numel_in_shard=2, intra_param_start_idx=2)
    held = nn.Parameter(torch.arange(10.0))
    held.grad = -torch.arange(10.0)
    assert shards.value(held, info, False).tolist() == [5, 6]
    assert shards.gradient(held, info, False, False).tolist() == [-5, -6]
    assert shards.same_part(torch.arange(6.0).view(2, 3), info).tolist() == [2, 3]


@pytest.mark.parametrize(("rank", "world_size"), RANKS)
def test_elements_that_differ_are_told_by_their_places(rank: int, world_size: int) -> None:
    whole = uneven()
    with as_rank(rank, world_size):
        flat = wrapped(orig=False)
        for name in NAMES:
            numbers = torch.arange(1.0, whole.get_parameter(name).numel() + 1)
            numbers = numbers.view_as(whole.get_parameter(name))
            info = shards.info(flat, name, False)
            part, places = shards.same_part(numbers, info), shards.places(numbers.shape, info)
            everywhere = judging.whole_off(name, numbers, torch.zeros_like(numbers), 0.0)
            told = judging.flat_off(name, places, part, torch.zeros_like(part))
            assert judging.flat_off(name, places, part, part) == []
            assert told == [everywhere[int(k) - 1] for k in part]


@pytest.mark.parametrize("orig", [False, True])
def test_a_rank_reads_what_has_no_version(orig: bool) -> None:
    """Memory that FSDP made under inference mode, and that it has given other data since."""
    info = SimpleNamespace(offset_in_shard=0, numel_in_shard=4)
    size = (2, 2) if orig else (4,)
    with torch.inference_mode():
        held, grad = nn.Parameter(torch.empty(size)), torch.empty(size)
    held.data, grad.data = torch.ones(size), torch.ones(size)
    held.grad = grad
    assert shards.value(held, info, orig).tolist() == [1.0] * 4
    assert shards.gradient(held, info, orig, False).tolist() == [1.0] * 4

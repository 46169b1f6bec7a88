"""What gives a model on the meta device the values of a plain one, whatever a rank holds of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._common_utils import clean_tensor_name
from torch.distributed.tensor import DTensor

from fsdpfuzz.steps import meta_init
from fsdpfuzz.steps.fsdp2 import shards
from fsdpfuzz.steps.mesh import over_all
from fsdpfuzz.steps.modules.buffered import Buffered
from tests.unit.steps.alone import CPU, RANKS, as_rank, uneven

Fill = Callable[[nn.Module, nn.Module], None]


def buffered() -> nn.Module:
    """Uneven parameters, one of them frozen, and buffers of which two are not saved."""
    model = nn.Sequential(uneven(), Buffered(2), Buffered(2, persistent=False, updates=True))
    model.get_parameter("0.1.weight").requires_grad_(False)
    for i, buffer in enumerate(model.buffers()):
        buffer.fill_(i + 3)
    return model


def test_one_part_or_all_is_on_meta_and_the_plain_model_stays() -> None:
    plain = buffered()
    for part in ("", "0.0", "2"):
        made = meta_init.on_meta(plain, part)
        named = [*made.named_parameters(), *made.named_buffers()]
        assert {name for name, t in named if t.is_meta} == {
            name for name, _ in named if name.startswith(part)
        }
        assert not made.get_parameter("0.1.weight").requires_grad
    assert not any(t.is_meta for t in (*plain.parameters(), *plain.buffers()))


def in_place(model: nn.Module, plain: nn.Module) -> None:
    meta_init.reset(model, plain, CPU)


def assigned(model: nn.Module, plain: nn.Module) -> None:
    meta_init.assign(model, plain)
    meta_init.unsaved(model, plain)


@pytest.mark.parametrize(("rank", "world_size"), RANKS)
@pytest.mark.parametrize("part", ["", "0", "2"])
@pytest.mark.parametrize("fill", [in_place, assigned])
def test_each_rank_gets_its_part(fill: Fill, part: str, rank: int, world_size: int) -> None:
    plain = buffered()
    with as_rank(rank, world_size):
        model = meta_init.on_meta(plain, part)
        fully_shard(model, mesh=over_all(CPU), ignored_params={model.get_parameter("0.2.bias")})
        fill(model, plain)
        for name, p in model.named_parameters():
            right = plain.get_parameter(name)
            assert isinstance(p, DTensor) is (name != "0.2.bias")
            seen = shards.value(p) if isinstance(p, DTensor) else p
            part_of_it = shards.same_part(right, p) if isinstance(p, DTensor) else right
            assert torch.equal(seen, part_of_it)
            assert p.requires_grad is right.requires_grad
        for name, buffer in model.named_buffers():
            assert torch.equal(buffer, plain.get_buffer(name))


@pytest.mark.parametrize("part", ["", "0", "2"])
def test_a_full_state_dict_leaves_what_is_not_in_it(part: str) -> None:
    plain = buffered()
    with as_rank(0, 1):
        model = meta_init.on_meta(plain, part)
        fully_shard(model, mesh=over_all(CPU))
        meta_init.load(model, plain, False)
        left = [name for name, buffer in model.named_buffers() if buffer.is_meta]
        assert left == ([] if part == "0" else ["2.scale", "2.calls"])
        meta_init.unsaved(model, plain)
        for name, buffer in model.named_buffers():
            assert torch.equal(buffer, plain.get_buffer(name))
        for name, p in model.named_parameters():
            assert isinstance(p, DTensor)
            assert torch.equal(shards.value(p), plain.get_parameter(name))


@pytest.mark.parametrize("part", ["", "0", "2"])
@pytest.mark.parametrize("by_function", [False, True])
def test_fsdp1_gets_the_values_while_it_wraps(part: str, by_function: bool) -> None:
    plain = buffered()
    with as_rank(0, 1):
        model = meta_init.on_meta(plain, part)
        told: dict[str, Any] = {"device_id": CPU, "use_orig_params": True}
        if by_function:
            told["param_init_fn"] = meta_init.param_init_fn(model, plain, CPU)
        else:
            meta_init.resettable(model, plain)
        setattr(model, "0", FSDP(checkpoint_wrapper(model.get_submodule("0")), **told))
        wrapped = FSDP(model, **told)
        with FSDP.summon_full_params(wrapped):
            seen = {clean_tensor_name(name): p for name, p in wrapped.named_parameters()}
            for name, p in plain.named_parameters():
                assert torch.equal(seen[name], p)
                assert seen[name].requires_grad is p.requires_grad
        for buffer, right in zip(wrapped.buffers(), plain.buffers(), strict=True):
            assert torch.equal(buffer, right)


def test_modules_that_came_later_have_nothing_to_be_copied() -> None:
    plain = nn.Linear(2, 2)
    model = meta_init.on_meta(plain, "")
    fill = meta_init.param_init_fn(model, plain, CPU)
    fill(checkpoint_wrapper(model))
    assert model.get_parameter("weight").is_meta
    fill(model)
    assert torch.equal(model.get_parameter("weight"), plain.weight)


def test_room_is_made_in_a_module_alone() -> None:
    model = meta_init.on_meta(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), "")
    make_room = meta_init.to_empty(CPU)
    make_room(model)
    make_room(model.get_submodule("0"))
    assert [p.is_meta for p in model.parameters()] == [False, False, True, True]


def test_what_has_values_keeps_them() -> None:
    plain = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model = meta_init.on_meta(plain, "0")
    make_room = meta_init.to_empty(CPU)
    kept = model.get_parameter("1.weight")
    for module in model.children():
        make_room(module)
    assert model.get_parameter("1.weight") is kept
    assert torch.equal(kept, plain.get_parameter("1.weight"))
    assert not model.get_parameter("0.weight").is_meta

"""Whole parameters are read by name, what is written is scaled, and units are sharded again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor

from fsdpfuzz.steps import full_params
from tests.unit.steps.alone import CPU, as_rank, uneven


def test_the_plain_model_is_read_by_name_and_then_written() -> None:
    named = {"b": nn.Parameter(torch.ones(2, 1)), "a": nn.Parameter(torch.full((1,), 4.0))}
    first = full_params.taken(named, ["a"])
    assert {name: value.flatten().tolist() for name, value in first.items()} == {
        "a": [4.0],
        "b": [1.0, 1.0],
    }
    assert full_params.taken(named)["a"].tolist() == [3.0]


def same(seen: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return seen.keys() == right.keys() and all(torch.equal(seen[n], right[n]) for n in right)


@pytest.mark.parametrize("orig", [False, True])
def test_fsdp1_keeps_what_is_written(orig: bool) -> None:
    plain = dict(uneven().named_parameters())
    with as_rank(0, 1):
        model = FullyShardedDataParallel(uneven(), device_id=CPU, use_orig_params=orig)
        first = full_params.summoned(model, True, ["0.weight"])
        assert same(first, full_params.taken(plain, ["0.weight"]))
        assert same(full_params.summoned(model, True, []), full_params.taken(plain))


@pytest.mark.parametrize("waits", [False, True])
def test_fsdp2_is_sharded_again(waits: bool) -> None:
    plain = dict(uneven().named_parameters())
    with as_rank(0, 1):
        model = uneven()
        fully_shard(model.get_submodule("0"))
        fully_shard(model)
        assert same(full_params.unsharded(model, False, waits), full_params.taken(plain))
        assert all(isinstance(p, DTensor) for p in model.parameters())

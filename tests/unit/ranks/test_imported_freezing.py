"""What a wrapping freezes by itself is read off the parameters that it leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard

from fsdpfuzz.case import (
    CaseSpec,
    Dense,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Plan,
    Sequential,
    anatomy,
)
from fsdpfuzz.ranks._imported_freezing import frozen_in, set_by_shard
from fsdpfuzz.ranks._sharded import Sharded
from fsdpfuzz.steps.names import parameters
from tests.unit.steps.alone import CPU, as_rank


def flat(model: Any) -> tuple[nn.Module, Plan]:
    model[0] = FSDP(model[0].requires_grad_(False), device_id=CPU)
    units = tuple(Fsdp1Unit(path=path) for path in ("", "0"))
    return FSDP(model, device_id=CPU), Fsdp1Plan(units=units)


def original(model: Any) -> tuple[nn.Module, Plan]:
    made = FSDP(model, device_id=CPU, use_orig_params=True)
    model[0].requires_grad_(False)
    return made, Fsdp1Plan(units=(Fsdp1Unit(path="", use_orig_params=True),))


def ignoring(model: Any) -> tuple[nn.Module, Plan]:
    model[0].requires_grad_(False)
    fully_shard(model, ignored_params=set(model[0].parameters()))
    unit = Fsdp2Unit(path="", ignored_parameters=("0.weight", "0.bias"))
    return model, Fsdp2Plan(units=(unit,))


def after(model: Any) -> tuple[nn.Module, Plan]:
    fully_shard(model)
    model[0].requires_grad_(False)
    return model, Fsdp2Plan(units=(Fsdp2Unit(path=""),))


@pytest.mark.parametrize("wrap", [flat, original, ignoring, after])
@pytest.mark.parametrize("rank", [0, 1])
def test_it_is_read_after_the_wrapping(wrap: Callable[[Any], Any], rank: int) -> None:
    with as_rank(rank, 2):
        # The second rank has no row of the first layer, and so no gradient of it in any case.
        made, plan = wrap(nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 3)))
        case = CaseSpec(
            world_size=2,
            model=Sequential(children=(Linear(out=1), Linear(out=3))),
            inputs=Dense(width=2),
            plan=plan,
            program=(),
        )
        a = anatomy(case)
        assert frozen_in(a, Sharded(a, made, parameters(made, True)).shards) == (
            "0.weight",
            "0.bias",
        )
        made.requires_grad_(True)
        assert frozen_in(a, Sharded(a, made, parameters(made, True)).shards) == ()


def test_it_is_said_with_the_first() -> None:
    assert "freezes a.weight, so" in set_by_shard(("a.weight",))
    assert "freezes a.weight and 2 more, so" in set_by_shard(("a.weight", "b", "c"))
    assert "trains all parameters" in set_by_shard(())

"""Which scaler is made, what another one takes over, and where a gradient overflows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.amp import GradScaler
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from fsdpfuzz.steps import grad_scaler as steps
from tests.unit.steps.alone import as_rank

CPU = torch.device("cpu")


def test_a_model_in_float16_has_a_scaler_that_takes_its_gradients() -> None:
    with as_rank(0, 1):
        kinds = {
            dtype: type(steps.by_dtype(CPU, dtype, 8.0, 2))
            for dtype in (torch.float64, torch.bfloat16, torch.float16)
        }
        assert type(steps.sharded(CPU, 8.0, 2)) is ShardedGradScaler
    assert type(steps.plain(CPU, 8.0, 2)) is GradScaler
    assert kinds == {
        torch.float64: GradScaler,
        torch.bfloat16: GradScaler,
        torch.float16: ShardedGradScaler,
    }


def test_another_scaler_has_the_state_of_the_first() -> None:
    scaler = steps.plain(CPU, 4.0, 2)
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for scale, counted in ((4.0, 1.0), (8.0, 0.0), (8.0, 1.0)):
        scaler.scale(weight.sum()).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        right = {"scaler": {"scale": scale, "growth_tracker": counted}}
        for one in (scaler, steps.made_again(scaler, CPU)):
            assert steps.state(one) == right
            assert one.get_growth_interval() == 2


def test_a_gradient_overflows_where_it_is() -> None:
    named = {"here": nn.Parameter(torch.ones(2)), "elsewhere": nn.Parameter(torch.ones(0))}
    named["here"].grad = torch.tensor([1.0, 0.0])
    for name in named:
        steps.overflow_here(named, name)
    assert not any(named["here"].grad.isfinite())
    assert named["elsewhere"].grad is None
    named["here"].grad = torch.tensor([1.0, 0.0])
    steps.overflow(named, "here")
    assert not any(named["here"].grad.isfinite())


@pytest.mark.parametrize(("rank", "finite"), [(0, False), (1, True)])
def test_a_sharded_gradient_overflows_on_the_first_rank(rank: int, finite: bool) -> None:
    with as_rank(rank, 2):
        model = nn.Linear(2, 2, bias=False)
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (2,)))  # type: ignore[attr-defined]
        model(torch.ones(1, 2)).sum().backward()
        grad: Any = model.weight.grad
        # No other rank is there that would have given anything.
        grad.to_local().fill_(1.0)
        steps.overflow_first(dict(model.named_parameters()), "weight")
        assert grad.to_local().isfinite().all().item() is finite

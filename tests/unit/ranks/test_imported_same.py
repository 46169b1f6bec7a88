"""A ``shard(model, mesh)`` that leaves other parameters than those of the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy, fully_shard

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
from fsdpfuzz.ranks._imported_checks import Trouble
from fsdpfuzz.ranks._imported_plan import mesh_of, plan_of
from fsdpfuzz.ranks._imported_same import check_same
from fsdpfuzz.ranks._sharded import Sharded
from fsdpfuzz.steps.names import parameters
from tests.unit.steps.alone import CPU, as_rank

FIRST, SECOND = Fsdp1Plan(units=(Fsdp1Unit(path=""),)), Fsdp2Plan(units=(Fsdp2Unit(path=""),))


def model() -> Any:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3))


def checked(made: nn.Module, plan: Plan) -> None:
    children = Sequential(children=(Linear(out=2), Linear(out=3)))
    case = CaseSpec(world_size=2, model=children, inputs=Dense(width=2), plan=plan, program=())
    a = anatomy(case)
    check_same(a, Sharded(a, made, parameters(made, True)).shards)


def test_the_models_own_are_right() -> None:
    with as_rank(0, 2):
        made = model()
        fully_shard(made)
        checked(made, SECOND)
        checked(FSDP(model(), device_id=CPU), FIRST)


def test_other_names_are_told() -> None:
    with as_rank(0, 2):
        made = model()
        fully_shard(made)
        with pytest.raises(Trouble, match=r"other names, as '0.0.weight': return the model itself"):
            checked(nn.Sequential(made), SECOND)
        with pytest.raises(Trouble, match=r"'_orig_mod.0.weight': compile it in place"):
            checked(torch.compile(made, backend="eager"), SECOND)  # type: ignore[arg-type]


def test_another_dtype_is_told() -> None:
    with as_rank(0, 2):
        made = model().to(torch.bfloat16)
        fully_shard(made)
        for wrapped, plan in ((made, SECOND), (FSDP(model().half(), device_id=CPU), FIRST)):
            with pytest.raises(Trouble, match=r"makes '0.weight' one of torch\.\w*float16"):
                checked(wrapped, plan)


def test_replicas_of_one_rank_each_are_read_as_such() -> None:
    with as_rank(1, 2):
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicas", "shards"))
        strategy = ShardingStrategy.HYBRID_SHARD
        made = FSDP(model(), device_mesh=mesh, sharding_strategy=strategy, device_id=CPU)
        # What FSDP has made of it.
        assert made.sharding_strategy is ShardingStrategy.NO_SHARD
        (unit,) = plan_of(made).units
        assert isinstance(unit, Fsdp1Unit)
        assert (unit.sharding, mesh_of(made)) == ("HYBRID_SHARD", (2, 1))
        plain = FSDP(model(), sharding_strategy=ShardingStrategy.NO_SHARD, device_id=CPU)
        (unit,) = plan_of(plain).units
        assert isinstance(unit, Fsdp1Unit)
        assert (unit.sharding, mesh_of(plain)) == ("NO_SHARD", None)

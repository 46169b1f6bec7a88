"""What a ``shard(model, mesh)`` of somebody's own has made is read back as a plan."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard

from fsdpfuzz.case import Fsdp2Plan
from fsdpfuzz.ranks._imported_plan import UnreadableError, plan_of
from tests.unit.steps.alone import CPU, as_rank


class Scaled(nn.Module):
    """A parameter beside a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.layer = nn.Linear(2, 2)


@pytest.mark.parametrize("orig", [False, True])
def test_what_fsdp1_ignores(orig: bool) -> None:
    with as_rank(0, 2):
        scaled = Scaled()
        inner = FSDP(scaled, ignored_states=[scaled.scale], device_id=CPU, use_orig_params=orig)
        outer = nn.Sequential(inner, nn.Linear(2, 1))
        plan = plan_of(FSDP(outer, device_id=CPU, use_orig_params=orig))
    assert [(u.path, u.ignored_parameters) for u in plan.units] == [("", ()), ("0", ("0.scale",))]


def test_what_fsdp2_ignores() -> None:
    with as_rank(0, 2):
        scaled = Scaled()
        model = nn.Sequential(scaled, nn.Linear(2, 1))
        fully_shard(scaled.layer)
        fully_shard(model, ignored_params={scaled.scale})
        plan = plan_of(model)
    assert [(u.path, u.ignored_parameters) for u in plan.units] == [
        ("", ("0.scale",)),
        ("0.layer", ()),
    ]


def test_what_a_list_of_modules_ignores_is_told_of_the_list() -> None:
    with as_rank(0, 2):
        first, second = nn.Linear(2, 2), Scaled()
        model = nn.Sequential(first, second)
        fully_shard([first, second], ignored_params={second.scale})
        fully_shard(model, ignored_params={second.scale})
        plan = plan_of(model)
    assert isinstance(plan, Fsdp2Plan)
    assert [(u.path, u.grouped, u.ignored_parameters) for u in plan.units] == [
        ("", (), ()),
        ("0", ("1",), ("1.scale",)),
    ]


def test_what_lies_in_no_unit_is_not_ignored() -> None:
    with as_rank(0, 2):
        scaled = Scaled()
        fully_shard(scaled.layer)
        plan = plan_of(nn.Sequential(scaled, nn.Linear(2, 1)))
    assert [(u.path, u.ignored_parameters) for u in plan.units] == [("0.layer", ())]


@pytest.mark.parametrize("second", [False, True])
def test_what_is_ignored_has_one_name(second: bool) -> None:
    with as_rank(0, 2):
        first, other = Scaled(), Scaled()
        other.scale = first.scale
        model = nn.Sequential(first, other)
        if second:
            fully_shard(model, ignored_params={first.scale})
            made: nn.Module = model
        else:
            made = FSDP(model, ignored_states=[first.scale], device_id=CPU)
        with pytest.raises(UnreadableError, match=r"ignores '0\.scale', which has other names"):
            plan_of(made)

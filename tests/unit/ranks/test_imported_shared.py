"""A module under several names of which a ``shard(model, mesh)`` sees one only."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointWrapper,
    apply_activation_checkpointing,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from fsdpfuzz.ranks._imported_plan import UnreadableError, plan_of
from fsdpfuzz.ranks._imported_shared import sharded_before, wrapped_once
from tests.unit.steps.alone import CPU, as_rank


class Stack(nn.Module):
    def __init__(self, embed: nn.Module) -> None:
        super().__init__()
        self.embed = embed
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Any:
        return self.layer(self.embed(x))


def model() -> Any:
    embed = nn.Embedding(3, 2)
    return nn.Sequential(Stack(embed), Stack(embed), Stack(embed))


def test_a_policy_wraps_one_of_its_names() -> None:
    with as_rank(0, 2):
        made = FSDP(model(), auto_wrap_policy=ModuleWrapPolicy({nn.Embedding}), device_id=CPU)
        (said,) = wrapped_once(made)
        assert said.startswith("'0.embed' is wrapped by FullyShardedDataParallel")
        assert "also holds it as '1.embed'" in said


def test_a_checkpoint_inside_of_a_unit_is_no_other_place() -> None:
    with as_rank(0, 2):
        made = FSDP(nn.Sequential(FSDP(nn.Linear(2, 2), device_id=CPU)), device_id=CPU)
        apply_activation_checkpointing(made, check_fn=lambda m: isinstance(m, nn.Linear))
        assert any(isinstance(m, CheckpointWrapper) for m in made.modules())
        assert not list(wrapped_once(made))


def test_the_wrapped_module_in_both_places_is_right() -> None:
    with as_rank(0, 2):
        made = model()
        embed = FSDP(made[0].embed, device_id=CPU)
        for stack in made:
            stack.embed = embed
        whole = FSDP(made, device_id=CPU)
        assert not list(wrapped_once(whole))
        with pytest.raises(UnreadableError, match=r"two places, '0.embed' and '1.embed'"):
            plan_of(whole)


def test_two_units_around_it_are_explained() -> None:
    with as_rank(0, 2):
        made = model()
        assert sharded_before(made) == ""
        fully_shard(made[0])
        with pytest.raises((TypeError, AssertionError, ValueError, RuntimeError)):
            fully_shard(made[1])
        said = sharded_before(made)
        assert "'0.embed' is also held as '1.embed', and lies in a unit already" in said


def test_a_unit_of_it_alone_comes_first() -> None:
    with as_rank(0, 2):
        made = model()
        for module in (made[0].embed, *made, made):
            fully_shard(module)
        assert sharded_before(made) == ""

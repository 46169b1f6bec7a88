"""What units are told after they were made: each of them, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from fsdpfuzz.steps import averaging
from fsdpfuzz.steps.fsdp2 import micro_batches
from tests.unit.steps.alone import as_rank

SETTERS = (
    "set_requires_all_reduce",
    "set_requires_gradient_sync",
    "set_reshard_after_backward",
    "set_is_last_backward",
)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object]]:
    """What setters of any unit are called with."""
    calls: list[tuple[str, object]] = []
    for name in SETTERS:

        def note(self: FSDPModule, value: object, name: str = name, **_: object) -> None:
            calls.append((name, value))

        monkeypatch.setattr(FSDPModule, name, note)
    return calls


def two_units() -> nn.Module:
    """Beside each other, in a module that is none."""
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    for layer in model:
        fully_shard(layer)
    return model


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["set_requires_gradient_sync"]),
        ({"all_reduce_only": True}, ["set_requires_all_reduce"]),
        ({"keep_whole": True}, ["set_requires_gradient_sync", "set_reshard_after_backward"]),
        (
            {"all_reduce_only": True, "not_last": True},
            ["set_requires_all_reduce", "set_is_last_backward"],
        ),
    ],
)
def test_of_micro_batches(
    options: dict[str, bool], names: list[str], told: list[tuple[str, object]]
) -> None:
    with as_rank(0, 1):
        model = two_units()
        micro_batches.tell(model, False, **options)
        assert told == [(name, False) for name in names] * 2


def test_the_plain_model_multiplies_each_gradient_once_frozen_before_or_not() -> None:
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1))
    second = model.get_parameter("1.weight")
    second.requires_grad_(False)
    averaging.scaled([model.get_parameter("0.weight"), second], 4.0, freezes=True)
    assert [p.requires_grad for p in model.parameters()] == [True, False, True]
    second.requires_grad_()
    plain = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1))
    plain.load_state_dict(model.state_dict())
    for _ in range(2):
        for trained in (model, plain):
            trained(torch.ones(1, 1)).sum().backward()
    for p, q, factor in zip(model.parameters(), plain.parameters(), (4, 4, 1), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        assert torch.equal(p.grad, factor * q.grad)

"""Bytes of gradients are counted once, wherever this torch keeps them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fsdpfuzz.steps.fsdp2 import memory


@pytest.mark.parametrize("newer", [False, True])
def test_a_gradient_that_waits_is_counted_once(
    newer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 2.15 on it is that of the whole parameter; before, it lies beside it."""
    whole, shard = nn.Parameter(torch.ones(6)), nn.Parameter(torch.ones(3))
    waiting = torch.ones(6)
    if newer:
        whole.grad = waiting
    held = SimpleNamespace(
        sharded_param=shard,
        _unsharded_param=whole,
        unsharded_accumulated_grad=whole.grad if newer else waiting,
    )
    monkeypatch.setattr(memory, "fsdp_params", lambda _: [held])
    assert memory.gradient_bytes(nn.Module()) == 6 * 4
    shard.grad = torch.ones(3)
    assert memory.gradient_bytes(nn.Module()) == (6 + 3) * 4

"""What a module that is called several times computes, and what goes back through it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fsdpfuzz.steps.modules.repeat import RepeatAside


@pytest.mark.parametrize("part", ["", "0"])
def test_a_call_under_no_grad_is_no_way_back(part: str) -> None:
    """Also of a module that returns its input, which requires grad."""
    x = torch.ones(3, requires_grad=True)
    y = RepeatAside(nn.Sequential(nn.Identity()), 2, part)(x)
    y.sum().backward()
    assert torch.equal(y, torch.full((3,), 4.0))
    assert x.grad is not None
    assert torch.equal(x.grad, torch.ones(3))

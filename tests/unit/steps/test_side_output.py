"""Modules keep a part of the loss for each call, until the loss takes it in."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fsdpfuzz.steps.modules.repeat import Repeat, RepeatAside
from fsdpfuzz.steps.modules.side_output import SideOutput, forget, with_kept

X = torch.tensor([[1.0, 2.0], [3.0, -1.0]])


def module(on: str) -> SideOutput:
    torch.manual_seed(0)
    return SideOutput(nn.Linear(2, 2), 2, on)


@pytest.mark.parametrize("on", ["no", "input", "output"])
def test_the_loss_is_that_of_the_output_and_of_what_is_kept(on: str) -> None:
    one = module(on)
    output = one(X)
    assert torch.equal(output, one.body(X))
    side = {"no": output, "input": X, "output": output}[on]
    side = one.layer(side) if on != "no" else side
    loss = output.sum()
    torch.testing.assert_close(with_kept(loss, one), loss + (side**2).mean())
    # It is taken in once.
    assert with_kept(loss, one) is loss


def test_what_no_loss_took_in_is_forgotten() -> None:
    one = nn.Sequential(module("no"), module("input"))
    one(X)
    forget(one)
    loss = one(X).sum()
    expected = with_kept(loss, one)
    torch.testing.assert_close(with_kept(one(X).sum(), one), expected)


def test_each_call_counts_and_one_under_no_grad_leaves_the_others_their_gradient() -> None:
    once, twice = module("output"), Repeat(module("output"), 2)
    loss = with_kept(once(X).sum(), once)
    again = with_kept(once(once.body(X)).sum(), once)
    output = twice(X)
    torch.testing.assert_close(with_kept(output.sum(), twice), loss - once(X).sum() + again)
    aside = RepeatAside(module("output"), 1, "")
    with_kept(aside(X).sum(), aside).backward()  # type: ignore[no-untyped-call]
    assert aside.body.get_parameter("layer.weight").grad is not None


def test_a_recomputation_gives_the_same_gradients_and_leaves_something_to_forget() -> None:
    plain, again = module("output"), module("output")
    with_kept(plain(X).sum(), plain).backward()  # type: ignore[no-untyped-call]
    output = checkpoint(again, X, use_reentrant=False)
    with_kept(output.sum(), again).backward()  # type: ignore[no-untyped-call]
    for p, q in zip(plain.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    forget(again)
    assert again.kept == []

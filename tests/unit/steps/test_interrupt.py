"""A forward that raises leaves nothing behind but what the model itself does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType

import pytest
import torch
from torch import Tensor, nn

from fsdpfuzz.steps.interrupt import interrupted


class _Around(nn.Module):
    """Puts something on for its forward, as a checkpoint of torch before 2.13 does."""

    def __init__(self) -> None:
        super().__init__()
        self._wrapped_module = nn.Linear(1, 1)
        self.on = 0
        self.held: list[FrameType] = []

    def _hooks(self) -> Iterator[None]:
        self.on += 1
        try:
            yield
        finally:
            self.on -= 1

    def forward(self, x: Tensor) -> Tensor:
        hooks = self._hooks()
        next(hooks)
        # A cycle through the traceback does so, until it is collected.
        self.held.append(sys._getframe())
        output: Tensor = self._wrapped_module(x)
        next(hooks, None)
        return output


@pytest.mark.parametrize("done", [False, True])
def test_what_was_put_on_for_the_forward_is_taken_off_at_once(done: bool) -> None:
    model = _Around()
    with interrupted(model, done):
        model(torch.ones(1, 1))
    assert model.held
    assert model.on == 0


@pytest.mark.parametrize("done", [False, True])
def test_only_that_forward_raises(done: bool) -> None:
    model = _Around()
    with interrupted(model, done):
        model(torch.ones(1, 1))
    assert model(torch.ones(1, 1)).shape == (1, 1)
    with pytest.raises(RuntimeError, match="no module raised"), interrupted(model, done):
        pass

"""Layers that are left out in turn, as the case foresees it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fsdpfuzz.case import Backward, Forward, Linear, anatomy
from fsdpfuzz.case.modules import LayerDrop as Node
from fsdpfuzz.steps.modules.layer_drop import LayerDrop
from tests.unit.case.test_units import fsdp2, make


class Noting(nn.Linear):
    """A layer that writes down when it is called."""

    def __init__(self, name: str, called: list[str]) -> None:
        super().__init__(1, 1)
        self.called, self.name = called, name

    def forward(self, input: Tensor) -> Tensor:
        """Writes its name down."""
        self.called.append(self.name)
        return super().forward(input)


@pytest.mark.parametrize("start", [0, 1, 3])
@pytest.mark.parametrize("train", [True, False])
def test_it_calls_what_the_case_says(start: int, train: bool) -> None:
    called: list[str] = []
    model = LayerDrop([Noting(f"layers.{i}", called) for i in range(3)], start).train(train)
    node = Node(children=(Linear(out=4),) * 3, start=start)
    a = anatomy(make(fsdp2(""), model=node, program=(Forward(), Backward()) * 5))
    for _, op, now in a.situations(0):
        if isinstance(op, Forward):
            now.training = train
            torch.manual_seed(now.forwards)
            called.clear()
            model(torch.ones(1, 1))
            assert called == [call.path for call in a.calls(op, now) if call.path]


def test_a_recomputation_leaves_out_the_same_layer() -> None:
    called: list[str] = []
    model = LayerDrop([Noting("0", called), Noting("1", called)])
    torch.manual_seed(1)
    first = checkpoint(model, torch.ones(1, 1), use_reentrant=False)
    torch.manual_seed(2)
    second = checkpoint(model, torch.ones(1, 1), use_reentrant=False)
    (first + second).sum().backward()
    assert sorted(called[:2]) == ["0", "1"]
    assert sorted(called[2:]) == ["0", "1"]

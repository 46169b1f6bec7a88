"""fsdp2's total norm as a plain tensor."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_

from fsdpfuzz.steps import clip
from tests.unit.steps.alone import as_rank


@pytest.mark.parametrize("lacking", [False, True])
def test_the_norm_of_dtensors_is_made_whole(lacking: bool) -> None:
    with as_rank(0, 1):
        model = nn.Linear(2, 2, bias=False)
        fully_shard(model)
        model(torch.ones(1, 2)).sum().backward()
        norm = clip_grad_norm_(model.parameters(), 0.5)
        assert isinstance(norm, DTensor)
        whole = clip.whole(norm, lacking)
        assert not isinstance(whole, DTensor)
        assert whole.item() == 2.0


def test_the_norm_of_nothing_is_whole_already() -> None:
    norm = clip_grad_norm_([nn.Parameter(torch.ones(2))], 0.5)
    assert clip.whole(norm, True) is norm
    with pytest.raises(AttributeError):
        clip.whole(norm, False)

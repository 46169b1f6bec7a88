"""Units by their size are those that torch's own policy makes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp.wrap import _recursive_wrap, size_based_auto_wrap_policy
from torch.nn.utils.parametrizations import weight_norm

from fsdpfuzz.case import Imported
from fsdpfuzz.own._sizes import by_policy
from fsdpfuzz.ranks._imported_parts import modules_of


class Unit(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner


class Attention(nn.MultiheadAttention):
    """A leaf, as what it is derived from."""


def net() -> nn.Module:
    pair = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
    held = nn.ModuleList([pair, nn.Linear(3, 3)])
    embedding, head = nn.Embedding(9, 4), nn.Linear(4, 9)
    head.weight = embedding.weight
    # What it has in it is a subclass of ModuleList, too.
    normed = weight_norm(nn.Linear(4, 9))
    return nn.Sequential(
        nn.Linear(4, 4), held, Attention(4, 2), nn.Sequential(embedding, head), normed
    )


def test_parameters_are_told_as_they_lie_in_memory() -> None:
    model = nn.ParameterDict(
        {
            "rows": torch.randn(3, 4),
            "columns": torch.randn(4, 3).t(),
            "last": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
            "one row": torch.randn(4, 1).t(),
            # Elements of another tensor lie in between.
            "part": torch.randn(3, 8)[:, ::2],
            "scalar": torch.randn(()),
        }
    )
    none: set[str] = set()
    trained = dict.fromkeys(dict(model.named_parameters()), True)
    (root,) = modules_of(model, none, trained, none, none, none, none, none)
    found = {p.name: p.order for p in root.parameters if p.order}
    assert found == {"columns": (1, 0), "last": (0, 2, 3, 1)}


@pytest.mark.parametrize("least", [1, 12, 16, 20, 36, 40, 45, 46, 72, 76, 80, 88, 150, 400])
def test_units_by_their_size(least: int) -> None:
    model = net()
    names = dict(model.named_parameters())
    none: set[str] = set()
    trained = dict.fromkeys(names, True)
    modules = modules_of(model, set(names), trained, none, none, none, none, none)
    expected = by_policy(Imported(target="mine.py", modules=modules), least)

    def wrapper(module: nn.Module, **_: Any) -> nn.Module:
        return Unit(module)

    policy = partial(size_based_auto_wrap_policy, min_num_params=least)
    _recursive_wrap(model, policy, wrapper, set(), set(), only_wrap_children=True)
    units = [name for name, module in model.named_modules() if isinstance(module, Unit)]
    assert [name.replace(".inner", "") for name in units] == expected

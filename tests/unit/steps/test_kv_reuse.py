"""Layers that reuse keys and values attend as PyTorch's own do, however many heads share them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from fsdpfuzz.steps.modules.kv_reuse import KeysValues, KvReuse, Reusing


@pytest.mark.parametrize("shape", [(2, 3, 8), (3, 8)])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_heads_share_keys_in_order(kv_heads: int, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    size = 8 // 4 * kv_heads
    source, layer, x = KeysValues(8, size), Reusing(8, 4, kv_heads), torch.randn(shape)
    keys, values = source(x)
    parts = []
    for head in range(4):
        own, shared = slice(2 * head, 2 * head + 2), head // (4 // kv_heads)
        k, v = (t[..., 2 * shared : 2 * shared + 2] for t in (keys, values))
        q = functional.linear(x, layer.queries)[..., own]
        parts.append((q @ k.mT / 2**0.5).softmax(dim=-1) @ v)
    expected = functional.linear(torch.cat(parts, dim=-1), layer.out)
    torch.testing.assert_close(layer(x, keys, values), expected)


def test_all_layers_are_given_the_same_keys_and_values() -> None:
    seen = []
    model = KvReuse(KeysValues(4, 4), [Reusing(4, 2, 2), Reusing(4, 2, 2)])
    for layer in model.layers:
        layer.register_forward_pre_hook(lambda _, given: seen.append(given[1:]))
    model(torch.randn(2, 3, 4))
    (first, second), (third, fourth) = seen
    assert first is third
    assert second is fourth

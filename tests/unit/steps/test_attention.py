"""Self-attention by PyTorch's own module: what the masks hide, and where the batch is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fsdpfuzz.steps.modules.attention import Attention


def made(mask: str = "none", **options: bool) -> Attention:
    torch.manual_seed(0)
    options = {"batch_first": True} | options
    return Attention(nn.MultiheadAttention(4, 2, **options), mask)


def changes(model: nn.Module, x: Tensor, at: int) -> list[bool]:
    """Of each position of the output, whether it hangs on the input at another one."""
    other = x.clone()
    other[..., at, :] += 1
    return [not bool(same) for same in torch.isclose(model(x), model(other)).all(-1).all(0)]


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(
    ("mask", "seen"),
    [
        ("none", ([True] * 3, [True] * 3, [True] * 3)),
        ("causal", ([True, True, True], [False, True, True], [False, False, True])),
        # The last one's query is there all the same.
        ("padding", ([True] * 3, [True] * 3, [False, False, True])),
    ],
)
def test_each_mask_hides_what_it_says(mask: str, seen: tuple[list[bool], ...], train: bool) -> None:
    model, x = made(mask).train(train), torch.randn(2, 3, 4)
    with torch.set_grad_enabled(train):
        assert tuple(changes(model, x, at) for at in range(3)) == seen


@pytest.mark.parametrize("mask", ["none", "causal", "padding"])
@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 1, 4), (3, 4)])
def test_batches_may_come_second(mask: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    first, second = made(mask)(x), made(mask, batch_first=False)(x)
    assert first.shape == x.shape
    torch.testing.assert_close(first, second)


def test_its_module_is_given_one_tensor() -> None:
    model = made()
    model.inner.register_forward_pre_hook(lambda _, given: seen.extend(given))
    seen: list[Tensor] = []
    model(torch.randn(2, 3, 4))
    assert len(seen) == 3
    assert len({id(x) for x in seen}) == 1

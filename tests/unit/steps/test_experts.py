"""Which expert gets which rows, and what comes of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fsdpfuzz.steps.modules.experts import Experts
from fsdpfuzz.steps.randomness import APART, on_rank


class Noting(nn.Linear):
    """An expert that writes down how many rows it is given."""

    def __init__(self, given: list[int]) -> None:
        super().__init__(3, 3)
        self.given = given

    def forward(self, input: Tensor) -> Tensor:
        """Writes the number down."""
        self.given.append(len(input))
        return super().forward(input)


def rows_by_expert(number: int, *, experts: int = 3, **options: int) -> tuple[int, ...]:
    given: list[int] = []
    model = Experts(3, [Noting(given) for _ in range(experts)], **options)
    model(torch.ones(number, 3))
    return tuple(given)


@pytest.mark.parametrize(
    ("rows", "options", "expected"),
    [
        (1, {}, (1, 0, 0)),
        (5, {}, (2, 2, 1)),
        (5, {"start": 1}, (1, 2, 2)),
        (2, {"top": 2}, (2, 2, 0)),
        (5, {"experts": 2}, (3, 2)),
    ],
)
def test_every_expert_is_called_with_the_rows_that_go_there(
    rows: int, options: dict[str, int], expected: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    assert rows_by_expert(rows, **options) == expected


def test_another_rank_and_another_forward_send_rows_elsewhere() -> None:
    found = []
    for number, batch in ((0, 0), (1, 0), (0, 1), (1, 1), (2, 1)):
        torch.manual_seed(on_rank(number, batch))
        found.append(rows_by_expert(2).index(2))
    assert found == [0, 1, 1, 2, 0]


def test_all_ranks_leave_out_the_same_layer() -> None:
    # `LayerDrop` takes the seed modulo the number of its layers and one.
    assert all(APART % (layers + 1) == 0 for layers in range(2, 5))


@pytest.mark.parametrize("top", [1, 2])
def test_what_comes_out_is_what_the_experts_of_each_row_make_of_it(top: int) -> None:
    torch.manual_seed(3)
    model = Experts(3, [nn.Linear(3, 3) for _ in range(3)], top).double()
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    torch.manual_seed(1)
    found = model(x)
    gates = model.router(x.view(8, 3)).softmax(dim=-1)
    for row in range(8):
        own = x.view(8, 3)[row]
        chosen = [(1 + row // 2 + choice) % 3 for choice in range(top)]
        right = torch.stack([gates[row, i] * model.experts[i](own) for i in chosen]).sum(dim=0)
        torch.testing.assert_close(found.view(8, 3)[row], right)


def test_an_expert_without_rows_gets_a_gradient_of_zeros() -> None:
    torch.manual_seed(0)
    model = Experts(3, [nn.Linear(3, 3) for _ in range(2)])
    model(torch.ones(2, 3)).sum().backward()
    first, second = (expert.weight.grad for expert in model.experts)
    assert isinstance(first, Tensor)
    assert first.abs().sum() > 0
    assert isinstance(second, Tensor)
    assert not second.any()
    assert isinstance(model.router.weight.grad, Tensor)
    assert model.router.weight.grad.any()


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_recomputation_sends_rows_where_they_went(reentrant: bool) -> None:
    given: list[int] = []
    model = Experts(3, [Noting(given) for _ in range(3)])
    losses = []
    for seed in (1, on_rank(1, 1)):
        torch.manual_seed(seed)
        x = torch.ones(2, 3, requires_grad=True)
        losses.append(checkpoint(model, x, use_reentrant=reentrant).sum())
    first, given[:] = given[:], []
    torch.manual_seed(0)
    (losses[0] + losses[1]).backward()
    again = {tuple(given[:3]), tuple(given[3:])}
    assert again == {tuple(first[:3]), tuple(first[3:])} == {(0, 2, 0), (0, 0, 2)}

"""The table of an optimizer's state holds what it is made of, and losing changes all of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.optim import SGD, Adam, Optimizer

from fsdpfuzz.steps import optim_state
from tests.unit.steps.alone import CPU, as_rank, uneven


def stepped(model: nn.Module, kind: type[Optimizer], named: dict[str, nn.Parameter]) -> Optimizer:
    """An optimizer that has made a step."""
    parameters, rate = model.parameters(), 0.25
    optimizer = SGD(parameters, lr=rate, momentum=0.5) if kind is SGD else Adam(parameters, lr=rate)
    width = next(iter(named.values())).shape[-1]
    model(torch.ones(2, width)).square().sum().backward()
    optimizer.step()
    return optimizer


@contextmanager
def plain_table(kind: type[Optimizer]) -> Iterator[optim_state.Table]:
    model = uneven()
    named = dict(model.named_parameters())
    yield optim_state.taken(stepped(model, kind, named), named)


def same(seen: optim_state.Table, right: optim_state.Table) -> bool:
    return seen.keys() == right.keys() and all(
        seen[fqn].keys() == right[fqn].keys()
        and all(torch.allclose(seen[fqn][n], right[fqn][n]) for n in right[fqn])
        for fqn in right
    )


def test_a_table_has_all_that_there_is_of_each_parameter() -> None:
    with plain_table(Adam) as table:
        assert {*next(iter(table.values()))} == {"step", "exp_avg", "exp_avg_sq"}
        assert all(float(entries["step"]) == 1.0 for entries in table.values())


def test_options_are_those_of_each_parameters_group_in_finite_numbers() -> None:
    p, q, r = (nn.Parameter(torch.ones(1)) for _ in range(3))
    groups = [{"params": [p], "lr": 0.5}, {"params": [q], "lr": torch.tensor(0.25)}]
    optimizer = Adam(groups, betas=(0.5, 0.75), amsgrad=True)
    optimizer.param_groups[0]["gain"] = float("inf")
    found = optim_state.given(optimizer, {"a": p, "b": q, "c": r})
    assert {fqn: float(given["lr"]) for fqn, given in found.items()} == {"a": 0.5, "b": 0.25}
    assert found["a"].keys() == {"lr", "betas", "eps", "weight_decay"}
    assert found["a"]["betas"].tolist() == [0.5, 0.75]
    assert all(value.is_floating_point() for value in found["a"].values())


def test_numbers_are_options_by_group_and_steps_by_parameter() -> None:
    used, unused = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = Adam([used, unused], lr=0.5)
    used.grad, unused.grad = torch.ones(1), torch.zeros(1)
    optimizer.step()
    found = optim_state.numbers(optimizer, {"a": used, "b": unused})
    assert found.keys() == {"group 0", "a"}
    assert found["a"] == {"step": torch.tensor(1.0)}
    assert found["group 0"]["lr"] == 0.5
    assert optim_state.numbers(None, {"a": used}) == {}


def test_gradients_are_counted_with_those_of_zeros() -> None:
    optimizer = Adam([nn.Parameter(torch.ones(1)) for _ in range(3)])
    assert optim_state.gradients(optimizer) == 0
    for p in optimizer.param_groups[0]["params"][1:]:
        p.grad = torch.zeros(1)
    assert optim_state.gradients(optimizer) == 2
    assert optim_state.gradients(None) is None


def test_what_was_never_stepped_is_no_part_of_it() -> None:
    used, unused = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = Adam([used, unused])
    used.grad, unused.grad = torch.ones(1), torch.zeros(1)
    optimizer.step()
    assert optim_state.taken(optimizer, {"a": used, "b": unused}).keys() == {"a"}


def test_all_of_it_is_lost() -> None:
    p = nn.Parameter(torch.ones(2))
    optimizer = Adam([p])
    p.grad = torch.tensor([1.0, 0.0])
    optimizer.step()
    before = {name: value.clone() for name, value in optimizer.state[p].items()}
    given = optim_state.given(optimizer, {"": p})[""]
    optim_state.forget(optimizer)
    assert all(bool(optimizer.state[p][name].ne(before[name]).all()) for name in before)
    left = optim_state.given(optimizer, {"": p})[""]
    assert all(torch.allclose(left[name], given[name] * 0.7) for name in given)
    assert optimizer.param_groups[0]["params"] == [p]


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("kind", [SGD, Adam])
def test_fsdp2_by_the_common_api(flat: bool, kind: type[Optimizer]) -> None:
    with as_rank(0, 1), plain_table(kind) as right:
        model = uneven()
        fully_shard(model)
        optimizer = stepped(model, kind, dict(model.named_parameters()))
        options = StateDictOptions(flatten_optimizer_state_dict=flat)
        state = get_optimizer_state_dict(model, optimizer, options=options)
        assert same(optim_state.table(state, flat, False, CPU), right)
        assert same(
            optim_state.options(state, flat, False, CPU),
            optim_state.given(optimizer, dict(model.named_parameters())),
        )


@pytest.mark.parametrize("orig", [False, True])
@pytest.mark.parametrize("full", [False, True])
def test_fsdp1_by_its_own(full: bool, orig: bool) -> None:
    with as_rank(0, 1), plain_table(Adam) as right:
        model = FullyShardedDataParallel(uneven(), device_id=CPU, use_orig_params=orig)
        plain = dict(uneven().named_parameters())
        optimizer = stepped(model, Adam, plain)
        state = optim_state.save_own(model, optimizer, full)
        assert same(optim_state.table(state, False, False, CPU), right)
        saved = optim_state.options(state, False, False, CPU)
        assert same(saved, optim_state.given(Adam(plain.values(), lr=0.25), plain))
        before = optim_state.numbers(optimizer, dict(model.named_parameters()))
        optim_state.forget(optimizer)
        assert not same(optim_state.numbers(optimizer, dict(model.named_parameters())), before)
        optim_state.load_own(model, optimizer, state, full)
        again = optim_state.save_own(model, optimizer, full)
        assert same(optim_state.table(again, False, False, CPU), right)
        assert same(optim_state.numbers(optimizer, dict(model.named_parameters())), before)

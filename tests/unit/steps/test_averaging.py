"""The plain model's gradients become the mean over all ranks, as FSDP's are."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Linear,
    Op,
    Sequential,
    Step,
    anatomy,
    check,
    lower,
)
from fsdpfuzz.case.modules import LayerDrop, Parametrized, Transposed
from fsdpfuzz.case.operations.average_unmanaged import AverageUnmanaged
from fsdpfuzz.pool import Pool
from fsdpfuzz.steps import averaging
from tests.misbehaviour import quick

CPU = torch.device("cpu")


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_average_what_they_have(world_size: int) -> None:
    injection = "tests.unit.steps.in_ranks:install_averaging"
    with Pool(world_size, "gloo", injection=injection) as pool:
        seen = pool.run(quick(world_size=world_size))
    ranks = range(world_size)
    mean = sum(rank + 1 for rank in ranks) / world_size
    odd = sum(8 * (rank + 1) for rank in ranks if rank % 2) / world_size
    for report in seen.reports:
        assert report is not None
        assert report.raised is None, report.raised
        scale, has = report.rank + 1.0, report.rank % 2
        own = ["everywhere", "nowhere", "odd ranks"]
        everywhere, nowhere, partly = ([scale, 10 * scale], None, [8 * scale * has, 0.0])
        due = [f"filled: {n} {v}" for n, v in zip(own, (everywhere, nowhere, partly), strict=True)]
        for when in ("once", "twice"):
            due += [f"{when}: everywhere {[mean, 10 * mean]}", f"{when}: nowhere None"]
            due += [f"{when}: odd ranks {[odd, 0.0]}"]
        due += ["dropped: everywhere None", "dropped: nowhere None"]
        due += [f"dropped: odd ranks {[odd, 0.0]}"]
        assert list(report.subjects[0].warnings) == due


def test_a_gradient_alone_is_averaged_whatever_its_strides() -> None:
    weight = Parametrized(out=1, bias=False, form="orthogonal")
    case = CaseSpec(
        world_size=2,
        model=weight,
        inputs=Dense(width=6),
        plan=Fsdp1Plan(units=(Fsdp1Unit(path="", use_orig_params=True),)),
        program=(Forward(), Backward(), Step()),
    )
    with Pool(2, backend="gloo") as pool:
        seen = pool.run(case)
    assert not seen.raised()
    assert seen.clean


def parameter(*grad: float) -> nn.Parameter:
    made = nn.Parameter(torch.zeros(len(grad)))
    made.grad = torch.tensor(grad)
    return made


def reduced(*parameters: nn.Parameter, lacking: bool = False) -> list[list[float]]:
    """What each all-reduce is given on one of four ranks."""
    given: list[list[float]] = []

    def all_reduce(tensor: Tensor) -> None:
        given.append(tensor.tolist())

    with (
        mock.patch.object(dist, "all_reduce", all_reduce),
        mock.patch.object(dist, "get_world_size", return_value=4),
    ):
        averaging.average(parameters, lacking=lacking)
    return given


def test_every_gradient_is_reduced_once_in_the_order_of_the_parameters() -> None:
    assert reduced(parameter(4.0), parameter(8.0, 12.0)) == [[1.0], [2.0, 3.0]]


def test_a_gradient_that_is_not_there_is_left_out_only_where_it_may_be_lacking() -> None:
    none = nn.Parameter(torch.zeros(1))
    assert reduced(parameter(4.0), none, parameter(8.0), lacking=True) == [[1.0], [2.0]]
    assert none.grad is None
    with pytest.raises(AttributeError):
        reduced(parameter(4.0), none)


@pytest.mark.parametrize("strided", [False, True])
def test_the_sum_goes_where_the_gradient_is(strided: bool) -> None:
    p = parameter(4.0)
    with (
        mock.patch.object(dist, "all_reduce", lambda tensor: tensor.mul_(4)),
        mock.patch.object(dist, "get_world_size", return_value=4),
    ):
        averaging.average([p], strided=strided)
    assert p.grad is not None
    assert p.grad.tolist() == [4.0]


def test_nccl_is_given_contiguous_tensors() -> None:
    p = nn.Parameter(torch.zeros(3, 2).t())
    p.grad = torch.arange(6.0).view(3, 2).t()
    given: list[Tensor] = []
    with (
        mock.patch.object(dist, "all_reduce", given.append),
        mock.patch.object(dist, "get_world_size", return_value=1),
    ):
        averaging.average([p])
        assert not given[0].is_contiguous()
        averaging.average([p], strided=True)
    assert given[1].is_contiguous()
    assert given[1].tolist() == p.grad.tolist() == [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]


@pytest.mark.parametrize("model", [Linear(out=2), Transposed(out=2)])
def test_it_is_told_of_gradients_that_are_not(model: Linear | Transposed) -> None:
    """Of all, and of those that no unit manages, which the program averages."""
    plan = Fsdp1Plan(units=(Fsdp1Unit(path="", ignored=("0",)),))
    case = CaseSpec(
        world_size=2,
        model=Sequential(children=(model, Linear(out=2))),
        inputs=Dense(width=2),
        plan=plan,
        program=(Forward(), Backward(), AverageUnmanaged(), Step()),
    )
    check(case)
    steps = str(lower(anatomy(case)))
    asked = 2 if isinstance(model, Transposed) else 0
    assert steps.count("steps.averaging.average'") == 2
    assert steps.count("'strided'") == asked


def test_zeros_are_given_only_where_another_rank_has_a_gradient() -> None:
    mine, theirs, nobodys = parameter(3.0), *(nn.Parameter(torch.zeros(2)) for _ in range(2))

    def all_reduce(held: Tensor) -> None:
        assert held.tolist() == [1.0, 0.0, 0.0]
        held += torch.tensor([0.0, 1.0, 0.0])

    with mock.patch.object(dist, "all_reduce", all_reduce):
        averaging.fill([mine, theirs, nobodys], CPU)
    assert mine.grad is not None
    assert theirs.grad is not None
    assert (mine.grad.tolist(), theirs.grad.tolist(), nobodys.grad) == ([3.0], [0.0, 0.0], None)


def test_units_that_a_backward_leaves_out_have_their_gradients_back() -> None:
    named = {name: parameter(float(i)) for i, name in enumerate("abcd", 1)}
    aside = averaging.put_aside(named, ("a", "b", "c"))
    assert [p.grad is None for p in named.values()] == [True, True, True, False]
    named["b"].grad = torch.tensor([9.0])
    averaging.put_back(named, aside, (("a", "b"), ("c",)))
    # What got one has a new one, and the rest of its unit none of before.
    grads = [None if p.grad is None else p.grad.tolist() for p in named.values()]
    assert grads == [None, [9.0], [3.0], [4.0]]


@pytest.mark.parametrize(("offload", "times"), [(True, 1), (False, 0)])
def test_the_plain_model_puts_aside_what_fsdp1_replaces_under_cpu_offload(
    offload: bool, times: int
) -> None:
    """Around the second backward alone: before the first there is nothing."""
    once: tuple[Op, ...] = (Forward(), Backward())
    case = CaseSpec(
        world_size=2,
        model=LayerDrop(children=(Linear(out=2), Linear(out=2))),
        inputs=Dense(width=2),
        plan=Fsdp1Plan(units=(Fsdp1Unit(path="", cpu_offload=offload),)),
        program=(*once, *once),
    )
    told = str(lower(anatomy(case)))
    assert [told.count(f"averaging.{step}'") for step in ("put_aside", "put_back")] == [times] * 2


def test_parameters_of_a_unit_have_gradients_together() -> None:
    named = {name: nn.Parameter(torch.ones(2)) for name in ("a", "b", "c", "d", "e")}
    named["a"].grad = torch.ones(2)
    named["c"].requires_grad_(False)
    averaging.fill_together(named, (("a", "b", "c"), ("d", "e")))
    grads = [None if p.grad is None else p.grad.tolist() for p in named.values()]
    assert grads == [[1.0, 1.0], [0.0, 0.0], None, None, None]


def test_named_parameters_without_a_gradient_get_zeros() -> None:
    named = {name: nn.Parameter(torch.ones(2)) for name in ("a", "b", "c")}
    named["a"].grad = torch.ones(2)
    averaging.zeros(named, ("a", "b"))
    grads = [None if p.grad is None else p.grad.tolist() for p in named.values()]
    assert grads == [[1.0, 1.0], [0.0, 0.0], None]

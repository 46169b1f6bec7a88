"""Faults of single units, injected in the ranks where FSDP itself would have them.

Units are counted per case, in the order in which FSDP makes them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import _runtime_utils
from torch.distributed.fsdp._flat_param import FlatParamHandle
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.observations import RankReport
from fsdpfuzz.ranks import _worker
from fsdpfuzz.ranks._env import RankEnv

Scatter = Callable[[Tensor, Tensor], object]
REDUCE = "foreach_reduce"


def units_are_never_gathered(_: RankEnv) -> None:
    """fsdp2 computes with the sharded parameters, which are DTensors."""
    FSDPParamGroup.unshard = lambda *_, **__: None  # type: ignore[method-assign]


def second_unit_not_averaged(env: RankEnv) -> None:
    """Each rank keeps its own gradient of the second unit."""

    def own_part(output: Tensor, given: Tensor) -> None:
        output.copy_(given.chunk(env.world_size)[env.rank])

    _in_place_of_reduce_scatter(1, own_part)


def second_unit_parts_the_ranks(env: RankEnv) -> None:
    """Rank 1 waits in a barrier where the others reduce the second unit."""
    if env.rank == 1:
        _in_place_of_reduce_scatter(1, lambda *_: dist.barrier())


def second_unit_raises(_: RankEnv) -> None:
    """The reduce-scatter of the second unit fails on all ranks."""
    _in_place_of_reduce_scatter(1, _fail)


def second_unit_raises_on_one_rank(env: RankEnv) -> None:
    """The reduce-scatter of the second unit fails on rank 1."""
    if env.rank == 1:
        _in_place_of_reduce_scatter(1, _fail)


def second_unit_stays_whole(_: RankEnv) -> None:
    """The second unit is not resharded after anything."""
    number, reshard = _count_units(), FSDPParamGroup.reshard

    def forgetful(self: Any) -> None:
        if number(self) != 1:
            reshard(self)

    _put(FSDPParamGroup, "reshard", forgetful)


def second_unit_kills_its_rank(env: RankEnv) -> None:
    """Rank 1 dies in the reduce-scatter of the second unit."""
    if env.rank == 1:
        _in_place_of_reduce_scatter(1, lambda *_: os.kill(os.getpid(), signal.SIGKILL))


def two_at_once(env: RankEnv) -> None:
    """The second unit is not averaged, and one of three parameters or more stays whole."""
    second_unit_not_averaged(env)
    reshard = FSDPParamGroup.reshard

    def forgetful(self: Any) -> None:
        if len(self.fsdp_params) < 3:
            reshard(self)

    _put(FSDPParamGroup, "reshard", forgetful)


def _fail(*_: Tensor) -> None:
    raise RuntimeError("injected: the reduce-scatter failed")


def _in_place_of_reduce_scatter(unit: int, scatter: Scatter) -> None:
    """Runs ``scatter(output, input)`` for that unit of every case, in both APIs."""
    number = _count_units()
    reduce1, reduce2 = _runtime_utils._reduce_grad, getattr(_fsdp_param_group, REDUCE)

    def faulty1(state: Any, handle: Any) -> None:
        if number(handle) == unit:
            state._comm_hook = lambda _, given, output: scatter(output, given)
        reduce1(state, handle)

    def faulty2(params: list[Any], *given: Any, **options: Any) -> Any:
        group = params[0]._injected_group
        if number(group) == unit:
            group._reduce_scatter_comm.__class__ = _comm_like(group._reduce_scatter_comm, scatter)
        return reduce2(params, *given, **options)

    _put(_runtime_utils, "_reduce_grad", faulty1)
    _put(_fsdp_param_group, REDUCE, faulty2)


def _comm_like(comm: Any, scatter: Scatter) -> type:
    def call(self: Any, output_tensor: Tensor, input_tensor: Tensor, *_: Any, **__: Any) -> None:
        scatter(output_tensor, input_tensor)

    return type("Injected", (type(comm),), {"__call__": call})


def _count_units() -> Callable[[Any], int]:
    """The number of a unit within its case, by its FSDP1 handle or FSDP2 group."""
    made = [0]
    run_case = _worker.run_case

    def counting(case: CaseSpec, env: RankEnv) -> RankReport:
        made[0] = 0
        return run_case(case, env)

    _worker.run_case = counting
    for kind in (FlatParamHandle, FSDPParamGroup):
        _number(kind, made)
    return lambda unit: unit._injected_number


def _number(kind: Any, made: list[int]) -> None:
    initialise = kind.__init__

    def numbered(self: Any, *given: Any, **options: Any) -> None:
        initialise(self, *given, **options)
        self._injected_number = made[0]
        made[0] += 1
        for parameter in getattr(self, "fsdp_params", ()):
            parameter._injected_group = self

    _put(kind, "__init__", numbered)


def _put(owner: Any, name: str, value: object) -> None:
    getattr(owner, name)  # an injection in a place that is gone would test nothing
    setattr(owner, name, value)

"""Faults of options that newer releases of torch have, where FSDP itself would have them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import fsdp
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

from fsdpfuzz.ranks._env import RankEnv


def unused_parameters_get_ones(_: RankEnv) -> None:
    """In place of zeros."""
    zeros = FSDPParam.unsharded_zero_grad_data.fget  # type: ignore[attr-defined]
    _put(FSDPParam, "unsharded_zero_grad_data", property(lambda self: torch.ones_like(zeros(self))))


def whole_parameters_are_freed(_: RankEnv) -> None:
    """Whatever FSDP was told."""
    to_sharded = FSDPParam.to_sharded

    def freeing(self: Any) -> None:
        to_sharded(self)
        self.free_unsharded_param()

    _put(FSDPParam, "to_sharded", freeing)


def no_parameter_keeps_its_dtype(_: RankEnv) -> None:
    """Whatever the policy says of it."""
    policy: Any = MixedPrecisionPolicy
    _put(policy, "_resolve_for_param", lambda self, _: replace(self, param_dtype_override_fn=None))


def what_autograd_left_is_not_finished(_: RankEnv) -> None:
    """Units that no hook of a backward reached are left as they are."""

    def waiting(self: Any, *, wait_for_gradient_reduction: bool = True) -> None:
        if wait_for_gradient_reduction:
            self.wait_for_gradient_reduction()

    _put(FSDPState, "finalize_backward", waiting)


def only_the_first_that_shares_reduces(_: RankEnv) -> None:
    """The other roots keep their gradients to themselves."""
    share = fsdp.share_comm_ctx

    def sharing(modules: list[fsdp.FSDPModule]) -> None:
        share(modules)
        for other in modules[1:]:
            other.set_requires_gradient_sync(False)

    _put(fsdp, "share_comm_ctx", sharing)


def an_own_group_of_one_rank(_: RankEnv) -> None:
    """Each rank reduces with itself."""
    set_group = FSDPParamGroup._set_separate_reduce_scatter_group

    def alone(self: Any, enable: bool, new_groups: dict[Any, Any]) -> None:
        set_group(self, enable, new_groups)
        if enable:
            only = dist.new_group([dist.get_rank()], use_local_synchronization=True)
            self.mesh_info.reduce_scatter_process_group = only

    _put(FSDPParamGroup, "_set_separate_reduce_scatter_group", alone)


def _put(owner: Any, name: str, value: object) -> None:
    getattr(owner, name)  # an injection in a place that is gone would test nothing
    setattr(owner, name, value)

"""Faults of checkpointing, freezing and the order of units, in the way FSDP itself could break."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrappers
from torch.distributed.fsdp import _runtime_utils
from torch.distributed.fsdp._exec_order_utils import _ExecOrderData, _ExecOrderWarnStatus
from torch.distributed.fsdp._flat_param import FlatParamHandle

from fsdpfuzz.ranks._env import RankEnv

_CHECK = "_check_order"
SAVE = "save_on_cpu"


def offload_not_entered(_: RankEnv) -> None:
    def plain(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._checkpoint_wrapped_module(*args, **kwargs)

    _put(wrappers.OffloadWrapper, "forward", plain)


def offload_where_none_is_due(_: RankEnv) -> None:
    forward: Any = wrappers.CheckpointWrapper.forward

    def offloading(self: Any, *args: Any, **kwargs: Any) -> Any:
        with getattr(wrappers, SAVE)(pin_memory=False):
            return forward(self, *args, **kwargs)

    _put(wrappers.CheckpointWrapper, "forward", offloading)


def one_form_has_other_gradients(_: RankEnv) -> None:
    """Of FSDP's subjects alone: the references wrap before any unit is there."""
    forward: Any = wrappers.OffloadWrapper.forward

    def doubling(self: Any, *args: Any, **kwargs: Any) -> Any:
        output: Any = forward(self, *args, **kwargs)
        if output.requires_grad:
            output.register_hook(lambda grad: 2 * grad)
        return output

    _put(wrappers.OffloadWrapper, "forward", doubling)


def nothing_is_freed(_: RankEnv) -> None:
    _put(FlatParamHandle, "_free_unsharded_flat_param", lambda _: None)


def frozen_units_have_no_hook(_: RankEnv) -> None:
    _put(_runtime_utils, "_register_post_backward_reshard_only_hook", lambda *_: None)


def frozen_units_reshard_twice(_: RankEnv) -> None:
    hook = _runtime_utils._post_backward_reshard_only_hook

    def twice(*args: Any) -> None:
        hook(*args)
        hook(*args)

    _put(_runtime_utils, "_post_backward_reshard_only_hook", twice)


def gradients_differ_beside_frozen_units(_: RankEnv) -> None:
    callback = _runtime_utils._post_reduce_grad_callback

    def scaled(state: Any, handle: Any, grad: Tensor) -> None:
        if not all(other.flat_param.requires_grad for other in state._exec_order_data.all_handles):
            grad.mul_(1.5)
        callback(state, handle, grad)

    _put(_runtime_utils, "_post_reduce_grad_callback", scaled)


def order_is_not_checked(_: RankEnv) -> None:
    _put(_ExecOrderData, _CHECK, lambda *_: None)


def one_rank_hears_nothing(env: RankEnv) -> None:
    check = getattr(_ExecOrderData, _CHECK)

    def deaf(*args: Any) -> None:
        try:
            check(*args)
        except RuntimeError:
            if env.rank == 0:
                raise

    _put(_ExecOrderData, _CHECK, deaf)


def warnings_repeat(_: RankEnv) -> None:
    """The iteration in which a rank was warned does not count as one."""
    following: Any = _ExecOrderData.next_iter

    def forgetful(self: Any) -> None:
        following(self)
        self.warn_status = _ExecOrderWarnStatus.NONE

    _put(_ExecOrderData, "next_iter", forgetful)


def every_rank_warns(env: RankEnv) -> None:
    check = getattr(_ExecOrderData, _CHECK)

    def loud(self: Any, handle: Any, is_training: bool) -> None:
        check(self, handle, is_training)
        if not self.is_first_iter and is_training:
            text = f"Forward order differs from that of the first iteration on rank {env.rank}."
            warnings.warn(text, stacklevel=1)

    _put(_ExecOrderData, _CHECK, loud)


def iterations_do_not_end(_: RankEnv) -> None:
    """The order of the last iteration runs on into the next."""
    following: Any = _ExecOrderData.next_iter

    def running_on(self: Any) -> None:
        index = self.current_order_index
        following(self)
        self.current_order_index = index

    _put(_ExecOrderData, "next_iter", running_on)


def _put(owner: Any, name: str, value: object) -> None:
    getattr(owner, name)  # an injection in a place that is gone would test nothing
    setattr(owner, name, value)

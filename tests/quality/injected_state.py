"""Faults of saving and loading, injected in the ranks in the way FSDP itself could break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.checkpoint import state_dict as dcp
from torch.distributed.fsdp import _flat_param, _state_dict_utils
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

from fsdpfuzz.ranks._env import RankEnv

_DISTRIBUTE = "_distribute_state_dict"


def fsdp1_loses_a_key(_: RankEnv) -> None:
    _after_full_save(lambda state: state.pop(_weight(state)))


def fsdp1_renames_a_key(_: RankEnv) -> None:
    def rename(state: dict[str, Any]) -> None:
        name = _weight(state)
        state[f"_fsdp_wrapped_module.{name}"] = state.pop(name)

    _after_full_save(rename)


def fsdp1_saves_rounded_values(_: RankEnv) -> None:
    def rounded(state: dict[str, Any]) -> None:
        name = _weight(state)
        state[name] = state[name].bfloat16().float()

    _after_full_save(rounded)


def fsdp1_loads_without_writing_back(_: RankEnv) -> None:
    enter = _state_dict_utils._enter_unshard_params_ctx

    def reading(*args: Any, **options: Any) -> None:
        enter(*args, **options | {"writeback": False})

    _put(_state_dict_utils, "_enter_unshard_params_ctx", reading)


def fsdp2_loses_a_key(_: RankEnv) -> None:
    _after_gathering(lambda state: state.pop(_weight(state)))


def fsdp2_renames_a_key(_: RankEnv) -> None:
    def rename(state: dict[str, Any]) -> None:
        name = _weight(state)
        state[f"_checkpoint_wrapped_module.{name}"] = state.pop(name)

    _after_gathering(rename)


def fsdp2_saves_another_dtype(_: RankEnv) -> None:
    def narrowed(state: dict[str, Any]) -> None:
        state[_weight(state)] = state[_weight(state)].bfloat16()

    _after_gathering(narrowed)


def fsdp2_leaves_a_value_behind(_: RankEnv) -> None:
    distribute = getattr(dcp, _DISTRIBUTE)

    def forgetful(full: dict[str, Any], local: dict[str, Any], **options: Any) -> None:
        kept = {name: local[name] for name in _weights(local)[:1]}
        distribute(full, local, **options)
        local.update(kept)

    _put(dcp, _DISTRIBUTE, forgetful)


def fsdp1_keeps_low_precision_shards(_: RankEnv) -> None:
    _put(_flat_param.FlatParamHandle, "_free_low_precision_sharded_param", _nothing)


def fsdp2_keeps_a_unit_whole(_: RankEnv) -> None:
    _put(FSDPParam, "free_unsharded_param", _nothing)


def fsdp2_keeps_whole_gradients(_: RankEnv) -> None:
    accumulate = FSDPParam.unsharded_grad_data.fget  # type: ignore[attr-defined]

    if isinstance(vars(FSDPParam).get("unsharded_accumulated_grad"), property):
        # In newer torch it is what the parameter has, and nothing can be put there.
        name = "kept_whole"
        kept = property(lambda self: vars(self).get(name))
        _put(FSDPParam, "unsharded_accumulated_grad", kept)
    else:
        name = "unsharded_accumulated_grad"

    def keeping(self: Any) -> Any:
        grad = accumulate(self)
        setattr(self, name, grad.detach().clone())
        return grad

    _put(FSDPParam, "unsharded_grad_data", property(keeping))


def tracker_forgets_a_module(_: RankEnv) -> None:
    note = FSDPMemTracker._instrument_fsdp_sharded_params_grads
    seen: list[Any] = []

    def forgetful(self: Any, group: Any) -> None:
        if seen:
            note(self, group)
        seen.append(group)

    _put(FSDPMemTracker, "_instrument_fsdp_sharded_params_grads", forgetful)


def _after_full_save(change: Callable[[dict[str, Any]], object]) -> None:
    """Runs ``change`` on what the full state dict's hook of a unit returns."""
    hook = _state_dict_utils._full_post_state_dict_hook

    def faulty(module: Any, state: Any, saved: dict[str, Any], prefix: str) -> dict[str, Any]:
        out: dict[str, Any] = hook(module, state, saved, prefix)
        if not prefix and _weights(out):  # a rank may get nothing
            change(out)
        return out

    _put(_state_dict_utils, "_full_post_state_dict_hook", faulty)


def _after_gathering(change: Callable[[dict[str, Any]], object]) -> None:
    """Runs ``change`` on the state dict that ``get_model_state_dict`` returns."""
    finish = dcp._maybe_full_or_cpu_state_dict

    def faulty(state: dict[str, Any], info: Any) -> dict[str, Any]:
        out: dict[str, Any] = finish(state, info)
        if _weights(out):
            change(out)
        return out

    _put(dcp, "_maybe_full_or_cpu_state_dict", faulty)


def _put(owner: Any, name: str, value: object) -> None:
    getattr(owner, name)  # an injection in a place that is gone would test nothing
    setattr(owner, name, value)


def _weight(state: dict[str, Any]) -> str:
    return _weights(state)[0]


def _weights(state: dict[str, Any]) -> list[str]:
    return [name for name in state if name.endswith("weight")]


def _nothing(*_: Any, **__: Any) -> None:
    pass

"""What fsdp1 sends from rank 0 when it wraps, on CPUs, which it refuses by itself."""

from __future__ import annotations

from torch.distributed.fsdp import _init_utils

from fsdpfuzz.ranks._env import RankEnv


def on_cpus(_: RankEnv) -> None:
    """Takes away the refusal alone; gloo can send what lies on the CPU."""
    _put("_check_module_states_for_sync_module_states")


def nothing(env: RankEnv) -> None:
    """Nothing is sent."""
    on_cpus(env)
    _put("_sync_params_and_buffers")


def _put(name: str) -> None:
    getattr(_init_utils, name)  # an injection in a place that is gone would test nothing
    setattr(_init_utils, name, lambda *_, **__: None)

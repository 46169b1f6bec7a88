"""Wraps a model by the API of its plan."""

from __future__ import annotations

from torch import nn

from fsdpfuzz.ranks import _fsdp1, _fsdp2
from fsdpfuzz.ranks._env import RankEnv
from fsdpfuzz.ranks._shard import Sharded
from fsdpfuzz.spec import Checkpoint, Fsdp1Plan, Plan


def shard(
    model: nn.Module, plan: Plan, checkpoints: tuple[Checkpoint, ...], env: RankEnv
) -> Sharded:
    """Places checkpoints and wraps ``model``, which lies on ``env.device``, as planned.

    Raises whatever FSDP raises.
    """
    if isinstance(plan, Fsdp1Plan):
        return _fsdp1.wrap(model, plan, checkpoints, env)
    return _fsdp2.wrap(model, plan, checkpoints, env)

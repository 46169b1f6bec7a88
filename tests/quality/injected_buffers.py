"""Faults of buffers that a forward changes, only under FSDP."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

from fsdpfuzz.ranks._env import RankEnv


def statistics_lost(_: RankEnv) -> None:
    """After each forward of a unit its batch norms have the running means of a new one."""
    forward, post_forward = FullyShardedDataParallel.forward, FSDPState._post_forward

    def first(self: FullyShardedDataParallel, *args: Any, **options: Any) -> Any:
        return _lost(self, forward(self, *args, **options))

    def second(self: Any, module: nn.Module, given: Any, output: Any) -> Any:
        return _lost(module, post_forward(self, module, given, output))

    FullyShardedDataParallel.forward = first  # type: ignore[method-assign]
    FSDPState._post_forward = second  # type: ignore[method-assign,assignment]


def _lost(module: nn.Module, output: Any) -> Any:
    for name, buffer in module.named_buffers():
        if name.endswith("running_mean"):
            # ``data``: autograd keeps the buffer for backward, and looks for changes.
            buffer.data.zero_()
    return output


def counts_twice(_: RankEnv) -> None:
    """A batch norm counts each batch of FSDP's forwards twice."""
    post_forward = FSDPState._post_forward

    def second(self: Any, module: nn.Module, given: Any, output: Any) -> Any:
        for name, buffer in module.named_buffers():
            if name.endswith("num_batches_tracked") and isinstance(buffer, Tensor):
                buffer.add_(1)
        return post_forward(self, module, given, output)

    FSDPState._post_forward = second  # type: ignore[method-assign,assignment]

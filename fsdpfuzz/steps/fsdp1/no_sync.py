"""``no_sync`` of units that no one unit contains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


@contextmanager
def no_sync(model: nn.Module) -> Iterator[None]:
    """``no_sync`` of every root."""
    with ExitStack() as stack:
        # FSDP lets a root alone enter no_sync().
        for unit in FSDP.fsdp_modules(model, root_only=True):
            stack.enter_context(unit.no_sync())
        yield

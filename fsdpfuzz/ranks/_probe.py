"""Every patch of torch that only observes: counters that FSDP's behaviour is read from."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from torch.autograd.graph import save_on_cpu
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrapper_module
from torch.distributed.fsdp import _runtime_utils
from torch.utils import checkpoint

from fsdpfuzz.steps import checkpointing

MAX_WARNINGS = 64
MAX_WARNING_TEXT = 500


@dataclass(slots=True)
class Counters:
    """What has been counted since the operation under way began; warnings since the start."""

    saved_on_cpu: int = 0
    checkpointed: int = 0
    """Entries of non-reentrant checkpointing."""
    reentrant: int = 0
    """Entries of reentrant checkpointing."""
    resharded: list[object] = field(default_factory=list)
    """The modules of fsdp1 whose post-backward hook resharded."""
    warned: list[tuple[int, str]] = field(default_factory=list)
    op: int = 0
    """The operation under way."""

    def begin(self, op: int) -> None:
        """Counts for an operation from here on."""
        self.op = op
        self.saved_on_cpu = self.checkpointed = self.reentrant = 0
        # The list itself stays: the probe appends to it.
        self.resharded.clear()

    @property
    def entered(self) -> tuple[int, int, int]:
        """Entries of ``save_on_cpu``, and of checkpointing, not reentrant and reentrant."""
        return self.saved_on_cpu, self.checkpointed, self.reentrant


@contextmanager
def probes(counters: Counters) -> Iterator[None]:
    """Counts entries of ``save_on_cpu`` and of checkpointing, post-backward reshards, warnings."""
    entered, reshard = _counting_save_on_cpu(counters), _runtime_utils._post_backward_reshard
    framed = checkpoint._CheckpointFrame.__init__
    applied: Callable[..., Any] = checkpoint.CheckpointFunction.apply

    def counting_frames(*args: Any, **kwargs: Any) -> None:
        counters.checkpointed += 1
        framed(*args, **kwargs)

    def counting_apply(*args: Any) -> Any:
        counters.reentrant += 1
        return applied(*args)

    def counting_reshard(module: Any, *args: Any, **kwargs: Any) -> Any:
        counters.resharded.append(module)
        return reshard(module, *args, **kwargs)

    with warnings.catch_warnings():
        # The usual filter shows a warning once for each line of code, and a rank runs thousands of
        # cases.
        warnings.simplefilter("always")
        warnings.showwarning = _recording(counters)
        with (
            # Both modules have imported it by name; torch.autograd.graph is not asked again.
            mock.patch.object(wrapper_module, "save_on_cpu", entered),
            mock.patch.object(checkpointing, "save_on_cpu", entered),
            # What every way of checkpointing comes to, whoever has imported it by name.
            mock.patch.object(checkpoint._CheckpointFrame, "__init__", counting_frames),
            mock.patch.object(checkpoint.CheckpointFunction, "apply", counting_apply),
            # ``_post_backward_hook`` and ``_post_backward_reshard_only_hook`` look it up in their
            # module when they run, so no hook needs to be registered anew.
            mock.patch.object(_runtime_utils, "_post_backward_reshard", counting_reshard),
        ):
            yield


def _counting_save_on_cpu(counters: Counters) -> Callable[..., save_on_cpu]:
    def enter(*args: Any, **kwargs: Any) -> save_on_cpu:
        counters.saved_on_cpu += 1
        return save_on_cpu(*args, **kwargs)

    return enter


def _recording(counters: Counters) -> Callable[..., None]:
    def show(message: Warning | str, *_: object, **__: object) -> None:
        if len(counters.warned) < MAX_WARNINGS:
            counters.warned.append((counters.op, str(message)[:MAX_WARNING_TEXT]))

    return show

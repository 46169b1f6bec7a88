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

from fsdpfuzz.steps import checkpointing

MAX_WARNINGS = 64
MAX_WARNING_TEXT = 500


@dataclass(slots=True)
class Counters:
    """What has been counted since the operation under way began; warnings since the start."""

    saved_on_cpu: int = 0
    resharded: list[object] = field(default_factory=list)
    """The modules of fsdp1 whose post-backward hook resharded."""
    warned: list[tuple[int, str]] = field(default_factory=list)
    op: int = 0
    """The operation under way; set by the watcher."""


@contextmanager
def probes(counters: Counters) -> Iterator[None]:
    """Counts entries of ``save_on_cpu``, post-backward reshards of fsdp1, and warnings."""
    entered, reshard = _counting_save_on_cpu(counters), _runtime_utils._post_backward_reshard

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

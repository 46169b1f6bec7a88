"""Training under ``FSDPMemTracker``."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker, _FSDPRefType
from torch.distributed.fsdp import FSDPModule
from torch.utils.checkpoint import checkpoint


def peak(tracker: FSDPMemTracker, device: torch.device) -> int:
    """Bytes at the peak on ``device``, by the tracker."""
    return int(tracker.get_tracker_snapshot("peak").get(device, {}).get("Total", 0))


def shards_at_peak(tracker: FSDPMemTracker) -> int:
    """Bytes of sharded parameters at the peak, by the tracker."""
    held = tracker.get_tracker_snapshot("peak").values()
    return sum(int(kinds.get(_FSDPRefType.SHARDED_PARAM, 0)) for kinds in held)


def unsharded_now(tracker: FSDPMemTracker) -> int:
    """Bytes of whole parameters that are there just now, by the tracker."""
    held = tracker.get_tracker_snapshot("current").values()
    return sum(int(kinds.get(_FSDPRefType.UNSHARDED_PARAM, 0)) for kinds in held)


def left(model: nn.Module) -> list[str]:
    """What still runs code of a memory tracker: storages, hooks of modules, units of FSDP."""
    found = ["UntypedStorage.resize_"] if tracks(torch.UntypedStorage.resize_) else []
    for name, module in model.named_modules():
        hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
        found += [f"hook of {name!r}" for hook in hooks if tracks(hook)]
        if isinstance(module, FSDPModule):
            group = getattr(module._get_fsdp_state(), "_fsdp_param_group", None)
            kept = {} if group is None else vars(group)
            found += [f"{key} of {name!r}" for key, value in kept.items() if tracks(value)]
    return found


def tracks(function: Any) -> bool:
    """Whether a function was made by one of torch's trackers."""
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename.endswith("mem_tracker.py")


def allocated(device: torch.device) -> int:
    """Bytes in use on a CUDA device before the training, its matrix library warmed up."""
    # For a thread's first product with a bias cuBLASLt allocates a workspace; autograd has its own.
    x = torch.randn(4, 768, device=device, requires_grad=True)
    checkpoint(nn.Linear(768, 768).to(x), x, use_reentrant=True).sum().backward()
    del x
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return int(torch.cuda.memory_stats(device)["active_bytes.all.current"])


def used_at_peak(device: torch.device, before: int) -> int:
    """Bytes at the peak on a CUDA device, by its allocator, above those in use ``before``."""
    torch.cuda.synchronize(device)
    return int(torch.cuda.memory_stats(device)["active_bytes.all.peak"]) - before

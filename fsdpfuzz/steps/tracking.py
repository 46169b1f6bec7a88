"""Training under ``FSDPMemTracker``."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker, _FSDPRefType


def peak(tracker: FSDPMemTracker, device: torch.device) -> int:
    """Bytes at the peak on ``device``, by the tracker."""
    return int(tracker.get_tracker_snapshot("peak").get(device, {}).get("Total", 0))


def shards_at_peak(tracker: FSDPMemTracker) -> int:
    """Bytes of sharded parameters at the peak, by the tracker."""
    held = tracker.get_tracker_snapshot("peak").values()
    return sum(int(kinds.get(_FSDPRefType.SHARDED_PARAM, 0)) for kinds in held)


def allocated(device: torch.device) -> int:
    """Bytes in use on a CUDA device before the training, its matrix library warmed up."""
    # The first product has cuBLAS allocate a workspace, which is none of the training's.
    warm = nn.Linear(768, 768, device=device)
    warm(torch.randn(1, 768, device=device)).sum().backward()
    del warm
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_accumulated_memory_stats(device)
    torch.cuda.reset_peak_memory_stats(device)
    return int(torch.cuda.memory_stats(device)["active_bytes.all.current"])


def used_at_peak(device: torch.device, before: int) -> int:
    """Bytes at the peak on a CUDA device, by its allocator, above those in use ``before``."""
    torch.cuda.synchronize(device)
    return int(torch.cuda.memory_stats(device)["active_bytes.all.peak"]) - before

"""What rank 0 alone has."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


# A collective: every rank comes here, whatever it has found.
def from_rank0(found: Any, device: torch.device) -> Any:
    """What rank 0 has found."""
    holder = [found]
    dist.broadcast_object_list(holder, src=0, device=device)
    return holder[0]

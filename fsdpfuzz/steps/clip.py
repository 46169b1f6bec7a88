"""The total norm that clipping gives."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor


def whole(norm: Any, lacking: bool) -> Tensor:
    """fsdp2's norm as a plain tensor, which it is already where gradients are ``lacking``."""
    if lacking and not isinstance(norm, DTensor):
        return norm
    return norm.full_tensor()

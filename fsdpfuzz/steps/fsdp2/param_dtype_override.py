"""``param_dtype_override_fn``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn


def keeping(kept: Sequence[nn.Parameter]) -> Callable[[nn.Parameter], torch.dtype | None]:
    """The dtype that they have for some parameters, and ``param_dtype`` for all others."""
    dtypes = {p: p.dtype for p in kept}
    return dtypes.get

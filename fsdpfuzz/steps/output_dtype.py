"""What the model puts out."""

from __future__ import annotations

from torch import Tensor


def dtype_of(output: Tensor) -> str:
    """``bfloat16``."""
    return str(output.dtype).removeprefix("torch.")

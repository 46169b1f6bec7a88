"""In which dtypes a model of your own runs without FSDP, and whether rounding decides there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from fsdpfuzz.case import Dtype
from fsdpfuzz.expect import STABLE
from fsdpfuzz.ranks._imported_checks import Trouble
from fsdpfuzz.ranks._imported_parts import close, close_all, where

NOISE = 2.0
"""How many rounding units of the largest gradient a gradient may be off besides: one that is zero,
but for rounding, as that of the bias of keys."""
SAME_RULE = 1e-2
"""How far float64 may be from float32 before it is called another computation."""


class Trained(Protocol):
    """One forward and backward without FSDP."""

    loss: Tensor
    grads: dict[str, Tensor | None]


class Train(Protocol):
    """Trains one step, and leaves what is raised as it is."""

    def __call__(self, dtype: torch.dtype, *, with_buffers: bool = True) -> Trained:
        """With the parameters in a dtype, and the buffers as well or in float32."""


def low_dtypes(
    train: Train, plain: Trained, names: Sequence[Dtype], *, with_buffers: bool
) -> tuple[Dtype, ...]:
    """Those in which it runs, and in which rounding does not decide what comes out.

    Its buffers are in them as well, or stay in float32.
    """
    sizes = [float(g.abs().max()) for g in plain.grads.values() if g is not None and g.numel()]
    found = []
    for name in names:
        dtype: torch.dtype = getattr(torch, name)
        try:
            run = train(dtype, with_buffers=with_buffers)
        except Exception:  # it does not run in that dtype, for whatever reason
            continue
        noise = NOISE * torch.finfo(dtype).eps * max(sizes, default=0.0)
        if torch.isfinite(run.loss) and close_all(run.grads, plain.grads, STABLE, noise):
            found.append(name)
    return tuple(found)


def not_in_float64(train: Train, plain: Trained, file: str) -> str:
    """Why float64 cannot say what is right, in words; empty where it can."""
    try:
        wide = train(torch.float64)
    except Trouble:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        why = f"your model cannot run in float64: {said[:400]}{where(error, file)}"
        hint = "Tensors in the dtype of their input (torch.zeros(..., dtype=x.dtype)) would do"
    else:
        # Of the loss alone: a gradient may be rounding and
        # nothing else, which float64 does not repeat.
        if close(plain.loss, wide.loss, SAME_RULE):
            return ""
        why = (
            f"in float64 your model computes something else: the loss is {float(wide.loss)!r}, in "
            f"float32 {float(plain.loss)!r}"
        )
        hint = (
            "Random numbers that depend on the dtype, as torch.rand_like(x) or dropout in "
            "attention, do that"
        )
    return (
        f"{why}. So what is right is taken from float32, and what rounding explains from a "
        f"training whose parameters are one rounding off, which is less sharp. {hint}"
    )

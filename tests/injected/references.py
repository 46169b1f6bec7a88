"""Mistakes of the reference itself, put into ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from fsdpfuzz.ranks import _compare, _execute, _reference
from fsdpfuzz.ranks._env import RankEnv


def averages_twice_in_float32(env: RankEnv) -> None:
    """The plain model in float32 has half of each gradient; the one in float64 is right."""
    averaged = _execute._at_once

    def twice(parameters: Sequence[nn.Parameter], *args: Any, **options: Any) -> None:
        averaged(parameters, *args, **options)
        for p in parameters:
            if p.grad is not None and p.dtype == torch.float32:
                p.grad.div_(2)

    _execute._at_once = twice


def compares_each_tensor(env: RankEnv) -> None:
    """Each comparison of a tensor is reported, however well it agrees."""
    _compare.QUICK_FACTOR = -1.0  # type: ignore[assignment]


def is_right_in_float32(env: RankEnv) -> None:
    """No float64 tells what is right, as where dropout draws on GPUs."""
    _reference.right_in = lambda *_: "float32"  # type: ignore[attr-defined]


def averages_twice_and_compares(env: RankEnv) -> None:
    """Both of them."""
    averages_twice_in_float32(env)
    compares_each_tensor(env)


def is_right_in_float32_and_compares(env: RankEnv) -> None:
    """Both of them."""
    is_right_in_float32(env)
    compares_each_tensor(env)

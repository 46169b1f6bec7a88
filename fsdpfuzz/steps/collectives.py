"""Noting the collectives that FSDP issues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor


def issued() -> list[str]:
    """All from now on, as they come: kind, dtype, and elements of what this rank hands in."""
    told: list[str] = []
    for name in dir(dist):
        if name.startswith(("all_gather", "all_reduce", "reduce_scatter")):
            # FSDP looks its collectives up in torch.distributed when it calls them.
            setattr(dist, name, noting(getattr(dist, name), told))
    return told


def noting(collective: Callable[..., Any], told: list[str]) -> Callable[..., Any]:
    """The collective itself; ``told`` hears of each call, of which the last tensor is the input."""
    kind = "_".join(collective.__name__.split("_")[:2])

    def noted(*args: Any, **options: Any) -> Any:
        given = [v for v in (*args, *options.values()) if isinstance(v, Tensor)][-1]
        told.append(f"{kind} {str(given.dtype).removeprefix('torch.')} {given.numel()}")
        return collective(*args, **options)

    return noted

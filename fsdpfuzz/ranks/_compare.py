"""How far this rank's part is from the reference, in as few kernel launches as it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fsdpfuzz.observations import Comparison, Quantity
from fsdpfuzz.ranks._trace import Values

NOT_FINITE = 1e300
"""Stands for an infinite or undefined error, which JSON cannot hold."""


@dataclass(frozen=True, slots=True)
class Yardstick:
    """How well float32 does on one tensor: DDP's distance from float64, and the size."""

    baseline: float
    scale: float


@dataclass(slots=True)
class Batch:
    """Comparisons of one operation, read back from the device together."""

    quantity: Quantity
    op: int
    eps: float
    floor: float
    exact: bool = False
    _items: list[tuple[str, Yardstick, int, int]] = field(default_factory=list)
    _numbers: list[Tensor] = field(default_factory=list)
    _missing: list[Comparison] = field(default_factory=list)

    def add(
        self,
        name: str,
        observed: Tensor | None,
        expected: Tensor | None,
        yardstick: Yardstick,
        reduced: int = 1,
    ) -> None:
        """One local part against the same part of the float64 reference, same numel."""
        if observed is None or expected is None:
            self._add_missing(name, observed, expected, yardstick)
            return
        if observed.numel() == 0:
            return
        wide = observed.detach().reshape(-1).to(torch.float64)
        right = expected.detach().reshape(-1).to(torch.float64)
        worst, where = (wide - right).abs().max(dim=0)
        self._items.append((name, yardstick, wide.numel(), reduced))
        self._numbers.append(torch.stack([worst, wide[where], right[where]]))

    def finish(self) -> tuple[Comparison, ...]:
        """All comparisons; waits for the device once."""
        if not self._numbers:
            return tuple(self._missing)
        rows = torch.stack(self._numbers).tolist()
        return tuple(
            Comparison(
                quantity=self.quantity,
                name=name,
                op=self.op,
                error=error if abs(error) < NOT_FINITE else NOT_FINITE,
                baseline=yardstick.baseline,
                scale=yardstick.scale,
                floor=self.floor,
                observed=_finite(observed),
                expected=_finite(expected),
                numel=numel,
                reduced=reduced,
                eps=self.eps,
                finite=abs(error) < NOT_FINITE,
                exact=self.exact,
            )
            for (name, yardstick, numel, reduced), (error, observed, expected) in zip(
                self._items, rows, strict=True
            )
        ) + tuple(self._missing)

    def _add_missing(
        self, name: str, observed: Tensor | None, expected: Tensor | None, yardstick: Yardstick
    ) -> None:
        there = expected if observed is None else observed
        if there is None or there.numel() == 0:
            return
        size = float(there.detach().abs().max())
        if size == 0.0:
            return  # no gradient and a gradient of zero are the same update
        self._missing.append(
            Comparison(
                quantity=self.quantity,
                name=name,
                op=self.op,
                error=size,
                baseline=yardstick.baseline,
                scale=max(size, yardstick.scale),
                floor=self.floor,
                observed=0.0 if observed is None else size,
                expected=size if observed is None else 0.0,
                numel=there.numel(),
                eps=self.eps,
                missing="observed" if observed is None else "expected",
                exact=self.exact,
            )
        )


def yardsticks(right: Values, single: Values) -> dict[str, Yardstick]:
    """For each tensor: the float32 reference's distance from float64, and the largest value."""
    names, numbers = [], []
    for name, wide in right.items():
        narrow = single.get(name)
        if wide is None or wide.numel() == 0:
            continue
        wide = wide.detach().to(torch.float64)
        scale = wide.abs().max()
        gap = scale if narrow is None else (narrow.detach().to(torch.float64) - wide).abs().max()
        names.append(name)
        numbers.append(torch.stack([gap, scale]))
    rows: Sequence[Sequence[float]] = torch.stack(numbers).tolist() if numbers else []
    return {name: Yardstick(*row) for name, row in zip(names, rows, strict=True)}


def _finite(value: float) -> float:
    """JSON has no NaN or infinity; `Comparison.finite` says that it was one."""
    return value if abs(value) < float("inf") else 0.0

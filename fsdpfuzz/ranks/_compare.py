"""How far this rank's part is from the reference, in as few kernel launches as it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fsdpfuzz.observations import Comparison, Quantity
from fsdpfuzz.ranks._trace import Values

NOT_FINITE = 1e300
"""Stands for an infinite or undefined error, which JSON cannot hold."""
QUICK_FACTOR = 16.0
"""Rounding units of the floor under which a batch is not looked at tensor by tensor."""


@dataclass(frozen=True, slots=True)
class Yardstick:
    """How well float32 does on one tensor: DDP's distance from float64, and the size."""

    baseline: float
    scale: float


@dataclass(slots=True)
class _Item:
    name: str
    observed: Tensor
    expected: Tensor
    yardstick: Yardstick | None
    reduced: int


@dataclass(slots=True)
class Batch:
    """Comparisons of one operation, read back from the device together.

    Most batches agree to a few rounding units of their largest element. One comparison
    named ``*`` then stands for all of them, and no yardstick is needed; otherwise there is
    one comparison for each tensor.
    """

    quantity: Quantity
    op: int
    eps: float
    floor: float
    exact: bool = False
    sticks: Callable[[], Mapping[str, Yardstick]] = dict
    """Yardsticks by name, for the items that bring none; asked for only when needed."""
    _items: list[_Item] = field(default_factory=list)
    _missing: list[Comparison] = field(default_factory=list)

    def add(
        self,
        name: str,
        observed: Tensor | None,
        expected: Tensor | None,
        yardstick: Yardstick | None = None,
        reduced: int = 1,
    ) -> None:
        """One local part against the same part of the float64 reference, same numel."""
        if observed is None or expected is None:
            self._add_missing(name, observed, expected, yardstick or Yardstick(0.0, 0.0))
        elif observed.numel() != expected.numel():
            self._missing.append(self._misshapen(name, observed, expected))
        elif observed.numel():
            right = expected.detach().reshape(-1)
            # What FSDP keeps on the CPU goes to where the reference is.
            seen = observed.detach().reshape(-1).to(right.device)
            self._items.append(_Item(name, seen, right, yardstick, reduced))

    def finish(self) -> tuple[Comparison, ...]:
        """All comparisons; waits for the device once, or twice when something is off."""
        if not self._items:
            return tuple(self._missing)
        largest = self._largest_error()
        if largest <= (0.0 if self.exact else QUICK_FACTOR * self.eps * self.floor):
            numel = sum(item.observed.numel() for item in self._items)
            together = self._comparison("*", Yardstick(0.0, 0.0), largest, 0.0, 0.0, numel, 1)
            return (together, *self._missing)
        known = self.sticks()
        numbers = []
        for item in self._items:
            wide, right = item.observed.to(torch.float64), item.expected.to(torch.float64)
            worst, where = (wide - right).abs().max(dim=0)
            numbers.append(torch.stack([worst, wide[where], right[where]]))
        rows = torch.stack(numbers).tolist()
        return (
            *(
                self._comparison(
                    item.name,
                    item.yardstick or known.get(item.name) or Yardstick(0.0, 0.0),
                    error,
                    observed,
                    expected,
                    item.observed.numel(),
                    item.reduced,
                )
                for item, (error, observed, expected) in zip(self._items, rows, strict=True)
            ),
            *self._missing,
        )

    def _largest_error(self) -> float:
        """Over all items; undefined values count as infinite."""
        wide = torch.cat([item.observed.to(torch.float64) for item in self._items])
        right = torch.cat([item.expected.to(torch.float64) for item in self._items])
        error = float((wide - right).abs().max())
        return float("inf") if math.isnan(error) else error

    def _comparison(
        self,
        name: str,
        yardstick: Yardstick,
        error: float,
        observed: float,
        expected: float,
        numel: int,
        reduced: int,
    ) -> Comparison:
        finite = abs(error) < NOT_FINITE
        return Comparison(
            quantity=self.quantity,
            name=name,
            op=self.op,
            error=error if finite else NOT_FINITE,
            baseline=yardstick.baseline,
            scale=yardstick.scale,
            floor=self.floor,
            observed=_finite(observed),
            expected=_finite(expected),
            numel=numel,
            reduced=reduced,
            eps=self.eps,
            finite=finite,
            exact=self.exact,
        )

    def _misshapen(self, name: str, observed: Tensor, expected: Tensor) -> Comparison:
        return Comparison(
            quantity=self.quantity,
            name=name,
            op=self.op,
            error=NOT_FINITE,
            baseline=0.0,
            scale=0.0,
            floor=self.floor,
            observed=float(observed.numel()),
            expected=float(expected.numel()),
            missing="shape",
            finite=False,
        )

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
    return {
        name: Yardstick(*(value if abs(value) < NOT_FINITE else NOT_FINITE for value in row))
        for name, row in zip(names, rows, strict=True)
    }


def floor_of(values: Values) -> float:
    """The largest absolute element of all tensors; 0.0 when there is none."""
    found = [value.reshape(-1) for value in values.values() if value is not None and value.numel()]
    return float(torch.cat(found).abs().max()) if found else 0.0


def _finite(value: float) -> float:
    """JSON has no NaN or infinity; `Comparison.finite` says that it was one."""
    return value if abs(value) < float("inf") else 0.0

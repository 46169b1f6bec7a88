"""How far this rank's part is from the reference, in as few kernel launches as it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec
import torch
from torch import Tensor

from fsdpfuzz.expect import FLOAT32_EPS, FLOOR_FACTOR, LOWER_FLOOR
from fsdpfuzz.observations import NOT_FINITE, Comparison, Quantity

# Nothing passes here that would be reported tensor by tensor, in no dtype.
QUICK_FACTOR = min(FLOOR_FACTOR, LOWER_FLOOR)
"""Rounding units of the floor under which a batch is not looked at tensor by tensor."""

Values = Mapping[str, Tensor | None]


def detached(value: Tensor) -> Tensor:
    """The same values, of which autograd knows nothing.

    What FSDP made under inference mode, and has given other data since, has no version for a view
    to share, and neither has what ``detach`` returns.
    """
    return value.data


@dataclass(frozen=True, slots=True)
class Baseline:
    """How well float32 does on one tensor: DDP's distance from float64, and the size.

    ``coarse`` is the distance of the plain model in lower dtypes, where units compute in such;
    ``eps`` is that of the dtype in which DDP computes, of the coarsest where there are several.
    """

    distance: float = 0.0
    scale: float = 0.0
    coarse: float | None = None
    eps: float = FLOAT32_EPS


@dataclass(slots=True)
class _Item:
    name: str
    observed: Tensor
    expected: Tensor
    reduced: int


@dataclass(slots=True)
class Batch:
    """Comparisons of one operation, read back from the device together.

    Most batches agree to a few rounding units of their largest element. One comparison
    named ``*`` then stands for all of them, and no baseline is needed; otherwise there is
    one comparison for each tensor.
    """

    quantity: Quantity
    op: int
    eps: float
    floor: float
    exact: bool = False
    baselines: Callable[[], Mapping[str, Baseline]] = dict
    """By name; asked for only when needed."""
    _items: list[_Item] = field(default_factory=list)
    _lone: list[tuple[str, Tensor, Literal["observed", "expected"]]] = field(default_factory=list)
    """What one side has alone, and which side lacks it."""
    _misshapen: list[Comparison] = field(default_factory=list)

    def add(
        self, name: str, observed: Tensor | None, expected: Tensor | None, reduced: int = 1
    ) -> None:
        """One local part against the same part of the float64 reference, same numel."""
        if observed is None or expected is None:
            there = expected if observed is None else observed
            if there is not None and there.numel():
                self._lone.append((name, there, "observed" if observed is None else "expected"))
        elif observed.numel() != expected.numel():
            self._misshapen.append(self._misshaped(name, observed, expected))
        elif observed.numel():
            right = expected.detach().reshape(-1)
            # All go to one device: what FSDP keeps on the CPU lies beside buffers on a GPU.
            device = self._items[0].expected.device if self._items else right.device
            seen = detached(observed).reshape(-1).to(device)
            # Nothing is computed yet: each number that is read back waits for all kernels before
            # it.
            self._items.append(_Item(name, seen, right.to(device), reduced))

    def finish(self) -> tuple[Comparison, ...]:
        """All comparisons; waits for the device once, or twice when something is off."""
        others = (*self._misshapen, *self._of_one_side())
        if not self._items:
            return others
        largest = self._largest_error()
        if largest <= (0.0 if self.exact else QUICK_FACTOR * self.eps * self.floor):
            numel = sum(item.observed.numel() for item in self._items)
            together = self._comparison("*", Baseline(), largest, (0.0, 0.0), numel, 1)
            return (together, *others)
        # Only now: most operations agree, and baselines take as many kernels again as the
        # comparison.
        known = self.baselines()
        numbers = []
        for item in self._items:
            wide, right = item.observed.to(torch.float64), item.expected.to(torch.float64)
            worst, where = (wide - right).abs().max(dim=0)
            # Indexed by a tensor, which stays on the device; an ``int(where)`` would wait for each
            # tensor.
            numbers.append(torch.stack([worst, wide[where], right[where]]))
        rows: list[list[float]] = torch.stack(numbers).tolist()
        found = [
            self._comparison(
                item.name,
                known.get(item.name, Baseline(0.0, 1.0 if self.exact else 0.0)),
                error,
                (observed, expected),
                item.observed.numel(),
                item.reduced,
            )
            for item, (error, observed, expected) in zip(self._items, rows, strict=True)
        ]
        return (*found, *others)

    def _largest_error(self) -> float:
        """Over all items; undefined values count as infinite."""
        # In float64, as the difference of two numbers in float16 is rounded itself.
        wide = torch.cat([item.observed.to(torch.float64) for item in self._items])
        right = torch.cat([item.expected.to(torch.float64) for item in self._items])
        error = float((wide - right).abs().max())
        return float("inf") if math.isnan(error) else error

    def _comparison(
        self,
        name: str,
        baseline: Baseline,
        error: float,
        values: tuple[float, float],
        numel: int,
        reduced: int,
    ) -> Comparison:
        finite = abs(error) < NOT_FINITE
        return Comparison(
            quantity=self.quantity,
            name=name,
            op=self.op,
            error=error if finite else NOT_FINITE,
            baseline=baseline.distance,
            coarse=baseline.coarse,
            baseline_eps=baseline.eps,
            scale=baseline.scale,
            floor=self.floor,
            observed=_finite(values[0]),
            expected=_finite(values[1]),
            numel=numel,
            reduced=reduced,
            eps=self.eps,
            finite=finite,
            exact=self.exact,
        )

    def _misshaped(self, name: str, observed: Tensor, expected: Tensor) -> Comparison:
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

    def _of_one_side(self) -> Iterator[Comparison]:
        """What one side lacks, as if it were zeros there.

        No gradient and a gradient of zero are the same update. Where a gradient is zero but for
        rounding, as that of a constant is, float32 may have it while float64 has none.
        """
        sizes = [(name, there, float(there.detach().abs().max())) for name, there, _ in self._lone]
        if not any(size != 0.0 for *_, size in sizes):
            return
        known = self.baselines()
        for (name, there, size), (*_, missing) in zip(sizes, self._lone, strict=True):
            if size == 0.0:
                continue
            baseline = replace(known.get(name, Baseline()), scale=size)
            values = (0.0, size) if missing == "observed" else (size, 0.0)
            found = self._comparison(name, baseline, size, values, there.numel(), 1)
            yield msgspec.structs.replace(found, missing=missing)


def baselines_of(
    right: Values,
    single: Values,
    lower: Sequence[Values] = (),
    *,
    nudged: Sequence[Values] = (),
    eps: float = FLOAT32_EPS,
) -> dict[str, Baseline]:
    """For each tensor: the float32 reference's distance from float64, and the largest value.

    What the float64 reference lacks counts as zeros. ``lower`` are the same tensors of references
    in lower dtypes; the furthest counts. So it does of float32's, if there is one that was
    ``nudged``. ``eps`` is that of the coarsest dtype in which float32's compute.
    """
    names, numbers = [], []
    others = (single, *nudged, *lower)
    for name in dict.fromkeys(name for values in (right, *others) for name in values):
        there = [value for values in (right, *others) if (value := values.get(name)) is not None]
        if not there or there[0].numel() == 0:
            continue
        wide = there[0].detach().to(torch.float64)
        if right.get(name) is None:
            wide = torch.zeros_like(wide)
        own = [_gap(wide, values.get(name)) for values in (single, *nudged)]
        gaps = [_gap(wide, values.get(name)) for values in lower]
        names.append(name)
        numbers.append(torch.stack([wide.abs().max(), torch.stack(own).max(), *gaps]))
    rows: Sequence[Sequence[float]] = torch.stack(numbers).tolist() if numbers else []
    return {
        name: Baseline(
            _bounded(distance), _bounded(scale), max(map(_bounded, coarse), default=None), eps
        )
        for name, (scale, distance, *coarse) in zip(names, rows, strict=True)
    }


def _gap(wide: Tensor, other: Tensor | None) -> Tensor:
    """How far a tensor is off; all that there is where it is missing."""
    if other is None:
        return wide.abs().max()
    return (other.detach().to(torch.float64) - wide).abs().max()


def _bounded(value: float) -> float:
    """NaN is as far off as can be."""
    return value if abs(value) < NOT_FINITE else NOT_FINITE


def floor_of(values: Values) -> float:
    """The largest absolute element of all tensors; 0.0 when there is none."""
    found = [value.reshape(-1) for value in values.values() if value is not None and value.numel()]
    return float(torch.cat(found).abs().max()) if found else 0.0


def _finite(value: float) -> float:
    """JSON has no NaN or infinity; `Comparison.finite` says that it was one."""
    return value if abs(value) < float("inf") else 0.0


def entries_of(name: str, value: Any) -> dict[str, Tensor]:
    """What a result holds, by name: ``n``, or ``n[0.weight]``, or ``n[0.weight].exp_avg``."""
    if isinstance(value, Tensor):
        return {name: value}
    found: dict[str, Tensor] = {}
    for key, inner in value.items():
        if isinstance(inner, Tensor):
            found[f"{name}[{key}]"] = inner
        else:
            found |= {f"{name}[{key}].{entry}": tensor for entry, tensor in inner.items()}
    return found

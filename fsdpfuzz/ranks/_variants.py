"""What the case itself gave, kept so that its variants can be compared with it directly.

Against the reference a variant may be off by rounding; against the case it may not, where both
compute the same. Where they sum in other orders they are two draws of one rounding, of which the
reference in float32 is a third: how far that one is off says how far rounding is carried. Tensors
are compared where they lie: what the two hold of a parameter on this rank, as far as the parts
overlap, which for equal plans is all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf, prod

import torch
from torch import Tensor

from fsdpfuzz.expect import ABSOLUTE, between_variants
from fsdpfuzz.observations import NOT_FINITE, Comparison, Quantity
from fsdpfuzz.ranks._compare import Baseline, detached
from fsdpfuzz.ranks._sharded import Shard

# Written out: torch keeps them in a private table
# (torch/testing/_comparison.py, ``_DTYPE_PRECISIONS``).
RELATIVE = {torch.float64: 1e-7, torch.float32: 1.3e-6, torch.float16: 1e-3, torch.bfloat16: 1.6e-2}
"""Relative tolerances by which ``torch.testing.assert_close`` calls two tensors equal."""

Key = tuple[Quantity, str, int]
Baselines = Callable[[], Mapping[str, Baseline]]
"""Those of the tensors of one operation, by name; asked for only when needed."""


@dataclass(slots=True)
class Part:
    """A shard of a parameter with a copy of its values, or of its gradient if it has one."""

    where: Tensor
    """Which elements of the flattened parameter these are, in order."""
    values: Tensor | None


@dataclass(slots=True)
class Likeness:
    """Keeps what the case gives, or compares what a variant gives with that."""

    shapes: Mapping[str, tuple[int, ...]]
    """Of all parameters, by FQN."""
    pattern: Likeness | None = None
    exact: bool = False
    comparisons: list[Comparison] = field(default_factory=list)
    _wholes: dict[Key, Tensor] = field(default_factory=dict)
    _parts: dict[tuple[Quantity, int], dict[str, list[Part]]] = field(default_factory=dict)

    def add_whole(
        self, quantity: Quantity, name: str, op: int, value: Tensor, baselines: Baselines = dict
    ) -> None:
        """A tensor that every subject has whole."""
        value = detached(value)
        if self.pattern is None:
            # A copy: it is looked at again when the case has been trained on, or is gone.
            self._wholes[quantity, name, op] = value.clone()
            return
        found = _Difference(quantity, name, op, self.exact, baselines)
        found.add(name, value, self.pattern._wholes[quantity, name, op])
        self.comparisons.append(found.worst())

    def add_wholes(
        self,
        quantity: Quantity,
        op: int,
        values: Mapping[str, Tensor],
        baselines: Baselines = dict,
    ) -> None:
        """Tensors that a subject has whole; those that the case lacks are none of its business."""
        for name, value in values.items():
            if self.pattern is None or (quantity, name, op) in self.pattern._wholes:
                self.add_whole(quantity, name, op, value, baselines)

    def _where(self, fqn: str, shard: Shard) -> Tensor:
        """The elements of the flattened parameter that a shard holds, in order."""
        # The very functions that cut values cut a tensor of positions; so no second arithmetic of
        # shards can be wrong in the same way.
        whole = torch.arange(prod(self.shapes[fqn])).view(self.shapes[fqn])
        return shard.same_part(whole).flatten()

    def add_parts(
        self,
        quantity: Quantity,
        op: int,
        shards: Iterable[Shard],
        canonical: Callable[[str], str],
        skipped: frozenset[str],
        baselines: Baselines = dict,
    ) -> None:
        """This rank's parts of all parameters, or of their gradients, by FQN."""
        held: dict[str, list[Part]] = {}
        for shard in shards:
            values = shard.gradient() if quantity == "grad" else shard.values()
            if values is not None:
                values = detached(values).flatten()
                values = values.clone() if self.pattern is None else values
            fqn = canonical(shard.name)
            if fqn not in self.shapes:
                # A second name of a parameter that the model itself ties, and that FSDP has parted.
                continue
            held.setdefault(fqn, []).append(Part(self._where(fqn, shard), values))
        if self.pattern is None:
            self._parts[quantity, op] = held
            return
        found = _Difference(quantity, "*", op, self.exact, baselines)
        # Without gradients where a backward of the case had nothing to go back through.
        usual = self.pattern._parts.get((quantity, op), {})
        for fqn, parts in held.items():
            if fqn in skipped:
                continue
            for mine in parts:
                for other in usual.get(fqn, ()):
                    _compare(found, fqn, mine, other)
        self.comparisons.append(found.worst())


def _compare(found: _Difference, fqn: str, mine: Part, other: Part) -> None:
    """As far as both hold the same elements."""
    if mine.values is None and other.values is None:
        return
    first, second = mine.where, other.where
    if not torch.equal(first, second):
        # Other plans cut elsewhere: only what this rank holds under
        # both can be compared without a collective.
        first, second = (torch.isin(a, b) for a, b in ((first, second), (second, first)))
    else:
        first = second = torch.ones_like(first, dtype=torch.bool)
    if not bool(first.any()):
        return
    there = mine.values if mine.values is not None else other.values
    if there is None:
        return
    # A missing gradient and one of zeros are the same update.
    ours = there.new_zeros(len(first)) if mine.values is None else mine.values
    usual = there.new_zeros(len(second)) if other.values is None else other.values
    found.add(fqn, ours[first.to(ours.device)], usual[second.to(usual.device)])


@dataclass(slots=True)
class _Difference:
    """The deviation that goes furthest beyond the relative tolerance and the baseline."""

    quantity: Quantity
    name: str
    op: int
    exact: bool
    baselines: Baselines
    numel: int = 0
    scale: float = 0.0
    eps: float = 0.0
    _beyond: float = -inf
    _worst: tuple[float, float, float] = (0.0, 0.0, 0.0)
    _baseline: float = 0.0

    def add(self, name: str, seen: Tensor, usual: Tensor) -> None:
        self.numel += seen.numel()
        if not seen.numel():
            return
        self.eps = max(self.eps, torch.finfo(usual.dtype).eps)
        self.scale = max(self.scale, _finite(float(usual.abs().max())))
        if seen.numel() != usual.numel():
            self._note(name, NOT_FINITE, float(seen.numel()), float(usual.numel()))
            return
        if torch.equal(seen.reshape(-1), usual.reshape(-1)):
            return
        wide, right = (t.reshape(-1).to(torch.float64) for t in (seen, usual))
        # Equal infinities too: their difference is NaN.
        same = (wide == right) | (wide.isnan() & right.isnan())
        free = 0.0 if self.exact else RELATIVE[usual.dtype]
        beyond = ((wide - right).abs() - free * right.abs()).masked_fill(same, 0.0)
        beyond = beyond.nan_to_num(nan=NOT_FINITE, posinf=NOT_FINITE)
        where = int(beyond.argmax())
        self._note(name, float(beyond[where]), float(wide[where]), float(right[where]))

    def _note(self, name: str, excess: float, seen: float, usual: float) -> None:
        baseline = 0.0
        # Less is allowed in any case, and baselines take as many kernels as the comparison.
        if ABSOLUTE < excess < NOT_FINITE and not self.exact:
            baseline = self.baselines().get(name, Baseline()).distance
        # Each tensor has its own: what much is allowed of must not hide another one.
        beyond = excess - between_variants(baseline)
        if excess > 0.0 and beyond > self._beyond:
            self.name, self._beyond = name, beyond
            self._worst, self._baseline = (excess, seen, usual), baseline

    def worst(self) -> Comparison:
        excess, seen, usual = self._worst
        return Comparison(
            quantity=self.quantity,
            name=self.name,
            op=self.op,
            error=excess,
            baseline=self._baseline,
            scale=self.scale,
            floor=self.scale,
            observed=_finite(seen),
            expected=_finite(usual),
            numel=self.numel,
            eps=self.eps,
            finite=excess < NOT_FINITE,
            exact=self.exact,
        )


def _finite(value: float) -> float:
    return value if abs(value) < NOT_FINITE else 0.0

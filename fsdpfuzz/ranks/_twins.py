"""What the case itself gave, kept so that its twins can be compared with it directly.

Against the reference a twin may be off by rounding; against the case it may not, where both
compute the same. Tensors are compared where they lie: what the two hold of a parameter on
this rank, as far as the parts overlap, which for equal plans is all of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fsdpfuzz.observations import Comparison, Quantity
from fsdpfuzz.ranks._compare import NOT_FINITE
from fsdpfuzz.ranks._shard import Piece

RELATIVE = {torch.float64: 1e-7, torch.float32: 1.3e-6, torch.float16: 1e-3, torch.bfloat16: 1.6e-2}
"""Relative tolerances by which ``torch.testing.assert_close`` calls two tensors equal."""

Key = tuple[Quantity, str, int]


@dataclass(slots=True)
class Part:
    """A piece of a parameter with a copy of its values, or of its gradient if it has one."""

    piece: Piece
    values: Tensor | None


@dataclass(slots=True)
class Likeness:
    """Fills an album with what a trainee gives, or compares that with a filled one."""

    pattern: Likeness | None = None
    exact: bool = False
    comparisons: list[Comparison] = field(default_factory=list)
    _wholes: dict[Key, Tensor] = field(default_factory=dict)
    _parts: dict[tuple[Quantity, int], dict[str, list[Part]]] = field(default_factory=dict)

    def add_whole(self, quantity: Quantity, name: str, op: int, value: Tensor) -> None:
        """A tensor that every subject has whole."""
        value = value.detach()
        if self.pattern is None:
            self._wholes[quantity, name, op] = value.clone()
            return
        found = _Difference(quantity, name, op, self.exact)
        found.add(name, value, self.pattern._wholes[quantity, name, op])
        self.comparisons.append(found.worst())

    def add_parts(
        self,
        quantity: Quantity,
        op: int,
        pieces: Iterable[tuple[str, Piece]],
        *,
        skipped: frozenset[str] = frozenset(),
    ) -> None:
        """This rank's parts of all parameters, or of their gradients, by FQN."""
        held: dict[str, list[Part]] = {}
        for fqn, piece in pieces:
            values = piece.grad() if quantity == "grad" else piece.value()
            keep = self.pattern is None and values is not None
            part = Part(piece, values.clone() if keep and values is not None else values)
            held.setdefault(fqn, []).append(part)
        if self.pattern is None:
            self._parts[quantity, op] = held
            return
        found = _Difference(quantity, "*", op, self.exact)
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
    overlap = _overlap(mine.piece, other.piece)
    if overlap is None or (mine.values is None and other.values is None):
        return
    low, high = overlap
    ours, usual = mine.values, other.values
    there = ours if ours is not None else usual
    if there is None:
        return
    # A missing gradient and one of zeros are the same update.
    ours = torch.zeros_like(there) if ours is None else ours
    usual = torch.zeros_like(there) if usual is None else usual
    first, second = _start(mine.piece), _start(other.piece)
    found.add(fqn, ours[low - first : high - first], usual[low - second : high - second])


def _overlap(a: Piece, b: Piece) -> tuple[int, int] | None:
    """The range of the flattened full parameter that both hold, or None."""
    if (a.dim or 0) > 0 or (b.dim or 0) > 0:
        same = (a.dim, a.start, a.length) == (b.dim, b.start, b.length)
        return (_start(a), _start(a) + a.numel) if same and a.numel else None
    low = max(_start(a), _start(b))
    high = min(_start(a) + a.numel, _start(b) + b.numel)
    return (low, high) if low < high else None


def _start(piece: Piece) -> int:
    """Where the piece begins in the flattened full parameter."""
    if piece.dim is None or not piece.length:
        return piece.start
    return piece.start * (piece.numel // piece.length)


@dataclass(slots=True)
class _Difference:
    """The deviation that goes furthest beyond the relative tolerance."""

    quantity: Quantity
    name: str
    op: int
    exact: bool
    numel: int = 0
    scale: float = 0.0
    eps: float = 0.0
    _worst: tuple[float, float, float] = (0.0, 0.0, 0.0)

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
        same = (wide == right) | (wide.isnan() & right.isnan())
        free = 0.0 if self.exact else RELATIVE[usual.dtype]
        beyond = ((wide - right).abs() - free * right.abs()).masked_fill(same, 0.0)
        beyond = beyond.nan_to_num(nan=NOT_FINITE, posinf=NOT_FINITE)
        where = int(beyond.argmax())
        self._note(name, float(beyond[where]), float(wide[where]), float(right[where]))

    def _note(self, name: str, excess: float, seen: float, usual: float) -> None:
        if excess > self._worst[0]:
            self.name = name
            self._worst = (excess, seen, usual)

    def worst(self) -> Comparison:
        excess, seen, usual = self._worst
        return Comparison(
            quantity=self.quantity,
            name=self.name,
            op=self.op,
            error=excess,
            baseline=0.0,
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

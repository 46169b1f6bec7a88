"""Tensor parallelism below fsdp2."""

from __future__ import annotations

import msgspec

from fsdpfuzz.case import CaseSpec, Op
from fsdpfuzz.case.tensor_parallel import Parallel, TensorParallel, can_be_cut, pairs
from fsdpfuzz.strategies.drawing import Drawing

MOST = 6
"""Modules for which something is drawn; those behind them stay whole."""


def draw(d: Drawing) -> None:
    """Over two ranks, or all: pairs of linears, and single modules in either style.

    As many as can be cut in half of the draws, which leaves clipping possible; some otherwise.
    None where ranks are odd in number or part, and where the rest of the case goes with none: of
    those that are wanted a seventh is left. Shrinks towards none, then towards few modules.
    """
    wanted, over_all, every = d.chance(40), d.chance(12), d.chance(50)
    chosen = d.for_each(MOST, MOST, lambda: (d.chance(60), d.chance(50), d.chance(85)))
    size = d.case.world_size if over_all else 2
    if not wanted or d.a.fsdp1 or d.apart or d.case.world_size % size or size == 1:
        return
    parts: list[Parallel] = []
    taken: set[str] = set()
    for (first, second), (takes, _, together) in zip(pairs(d.a), chosen, strict=False):
        pair = Parallel(module=first, into=second)
        if (takes or every) and together and not taken & {first, second} and _fits(d, size, pair):
            parts.append(pair)
            taken |= {first, second}
    single: dict[str, list[Parallel]] = {}
    for part in can_be_cut(d.a, size):
        if part.module not in taken and _fits(d, size, part):
            single.setdefault(part.module, []).append(part)
    for styles, (takes, last, _) in zip(single.values(), chosen, strict=False):
        if takes or every:
            parts.append(styles[-1 if last else 0])
    if parts:
        case = _with(d, size, *parts)
        d.case = case if d.accepts(case) else d.case


def _with(d: Drawing, size: int, *parts: Parallel) -> CaseSpec:
    return msgspec.structs.replace(d.case, tensor_parallel=TensorParallel(size=size, modules=parts))


def _fits(d: Drawing, size: int, part: Parallel) -> bool:
    """Whether it can be cut, whatever else is."""
    # What goes with no tensor parallelism at all is found out at the first of them.
    case = msgspec.structs.replace(_with(d, size, part), program=_unclipped(d))
    return d.accepts(case)


def _unclipped(d: Drawing) -> tuple[Op, ...]:
    return tuple(op for op in d.case.program if not op.joins_gradients)

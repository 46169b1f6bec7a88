"""Tensor parallelism below fsdp2."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd

import msgspec

from fsdpfuzz.case import Inputs, Op
from fsdpfuzz.case.mesh import Mesh, with_plans
from fsdpfuzz.case.parallel import Parallel, can_be_cut, pairs
from fsdpfuzz.case.sequence_parallel import handed_on
from fsdpfuzz.case.tensor_parallel import TensorParallel
from fsdpfuzz.strategies.drawing import Drawing
from fsdpfuzz.strategies.mesh import dividing

MOST = 6
"""Modules for which something is drawn; those behind them stay whole."""


def draw(d: Drawing) -> None:
    """Over two ranks, or all: pairs of linears, and single modules in either style.

    As many as can be cut in half of the draws, which leaves clipping possible; some otherwise.
    Half of them cut data by its rows as well, of which there are then enough: for norms, and
    mostly wherever it goes from one parallelised module to the next.
    None where ranks are odd in number or part, and where the rest of the case goes with none: of
    those that are wanted a seventh is left. Shrinks towards none, then towards few modules.
    """
    wanted, over_all, every = d.chance(40), d.chance(12), d.chance(50)
    chosen = d.for_each(MOST, MOST, lambda: (d.chance(60), d.chance(50), d.chance(85)))
    by_rows, hands_on, later, tensors = d.chance(50), d.chance(70), d.chance(60), d.chance(40)
    normed = d.for_each(MOST, MOST, lambda: d.chance(80))
    replicated = d.chance(50)
    size = d.case.world_size if over_all else 2
    if not wanted or d.a.fsdp1 or d.apart or d.case.world_size % size or size == 1:
        return
    whole = d.case
    _leave_ranks(d, size, replicated=replicated)
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
    plain = TensorParallel(size=size, modules=tuple(parts))
    if not (by_rows and _by_rows(d, plain, normed, hands_on=hands_on, later=later)):
        _put(d, plain)
    told = d.case.tensor_parallel
    cut = told is not None and (
        handed_on(d.a).takes or any(part.into is not None for part in told.modules)
    )
    if tensors and told is not None and cut:
        _put(d, msgspec.structs.replace(told, use_local_output=False))
    if told is None:
        d.case = whole


def _leave_ranks(d: Drawing, size: int, *, replicated: bool) -> None:
    """Makes a mesh of the data as much smaller as it takes, along one of its axes if that does."""
    mesh = d.case.mesh
    if mesh is None:
        return
    fewer = gcd(mesh.shard, size) if replicated else size // gcd(mesh.replicate, size)
    shards = mesh.shard // fewer
    d.put(mesh=Mesh(replicate=mesh.replicate * fewer // size, shard=shards))
    d.case = with_plans(d.case, lambda plan: dividing(plan, shards))


def _by_rows(
    d: Drawing, told: TensorParallel, takes: Sequence[bool], *, hands_on: bool, later: bool
) -> bool:
    """Puts in also norms, and data that stays cut; False where there is neither."""
    before = d.case
    later &= (before.inputs.length or 0) >= told.size
    told = msgspec.structs.replace(told, sequence_dim=int(later))
    d.put(inputs=_even(before.inputs, told.size, later=later))
    norms = tuple(norm for norm, one in zip(_norms(d, told), takes, strict=False) if one)
    told = msgspec.structs.replace(told, modules=(*told.modules, *norms))
    handing = msgspec.structs.replace(told, hands_on=True)
    if hands_on and _put(d, handing) and handed_on(d.a).takes:
        return True
    d.put(tensor_parallel=None)
    if norms and _put(d, told):
        return True
    d.case = before
    return False


def _put(d: Drawing, told: TensorParallel) -> bool:
    """Puts it in if it goes with the rest of the case."""
    case = msgspec.structs.replace(d.case, tensor_parallel=told)
    fits = bool(told.modules) and d.accepts(case)
    d.case = case if fits else d.case
    return fits


def _even(inputs: Inputs, size: int, *, later: bool) -> Inputs:
    """Inputs of which ``size`` ranks have equally many rows: of a larger batch."""
    if later and inputs.length is not None:
        # A shorter sequence: for a longer one modules may have too few positions.
        return msgspec.structs.replace(inputs, length=inputs.length - inputs.length % size)
    return msgspec.structs.replace(inputs, batch=inputs.batch + -inputs.batch % size)


def _norms(d: Drawing, told: TensorParallel) -> Iterator[Parallel]:
    for place in d.a.places:
        if place.node is not None and place.node.normalises:
            part = Parallel(module=place.path, style="sequence")
            if _fits(d, told.size, part, told.sequence_dim):
                yield part


def _fits(d: Drawing, size: int, part: Parallel, sequence_dim: int = 0) -> bool:
    """Whether it can be cut, whatever else is."""
    told = msgspec.structs.replace(
        TensorParallel(size=size, modules=(part,)), sequence_dim=sequence_dim
    )
    # What goes with no tensor parallelism at all is found out at the first of them.
    return d.accepts(msgspec.structs.replace(d.case, tensor_parallel=told, program=_unclipped(d)))


def _unclipped(d: Drawing) -> tuple[Op, ...]:
    return tuple(op for op in d.case.program if not op.joins_gradients)

"""Clipping of gradients by their total norm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from fsdpfuzz.case import Anatomy, anatomy
from fsdpfuzz.case.operations.average_unmanaged import unmanaged
from fsdpfuzz.case.operations.clip import Clip
from fsdpfuzz.case.strides import without_elements
from fsdpfuzz.case.structure import leaves_out_a_rank
from fsdpfuzz.case.units.sharding import is_whole
from fsdpfuzz.strategies.operations.average_unmanaged import ranks_agree
from fsdpfuzz.strategies.operations.backward import after_reductions
from fsdpfuzz.strategies.operations.forward import EVALUATION
from fsdpfuzz.strategies.operations.program import MAX_ITERATIONS, Program

# Most programs clip by the 2-norm.
_NORMS: tuple[Literal[1, 2, "inf"], ...] = (2, 1, 2, "inf", 2)
# Some that clip nearly every gradient, and some that clip hardly any.
_SIZES = (1.0, 0.1, 0.3, 3.0, 10.0, 30.0)


def draw(program: Program) -> None:
    """After the last backward of all iterations, or of some, and before the gradients are used.

    Most where there is more to a norm than what one kind of unit has. By ``clip(model)`` where the
    target of an imported model wraps it and has one.

    Shrinks towards none, then towards one before an evaluation, by the 2-norm, to 1.
    """
    d = program.d
    own = d.a.imported
    clips = own is not None and own.clips
    agree = ranks_agree(program)
    often = clips or (agree and bool(unmanaged(d.a))) or _some_whole(d.a)
    if d.apart or not d.trains or not (d.chance(60) if often else d.chance(16, parity=22)):
        return
    clip = _drawn(program)
    size = len(program.iterations)
    other = d.for_each(size, MAX_ITERATIONS, lambda: d.chance(15))
    none = d.for_each(size, MAX_ITERATIONS, lambda: d.chance(10))
    for i, (iteration, a) in enumerate(zip(program.iterations, _plans(program), strict=True)):
        if other[i]:
            clip = _drawn(program)
        if (
            (unmanaged(a) and not (a.fsdp1 and agree))
            or (a.fsdp1 and "" not in a.options)
            or none[i]
        ):
            continue
        for last in after_reductions(iteration)[:1]:
            # An evaluation in front of the step may come before it, or behind.
            behind = iteration[last : last + 1] == [EVALUATION] and d.chance(50)
            iteration.insert(last + behind, clip)


def _some_whole(a: Anatomy) -> bool:
    """Whether fsdp1 adds up a norm of what it shards and one of what it does not."""
    return a.fsdp1 and len({is_whole(a, unit) for unit in a.units}) > 1


def _drawn(program: Program) -> Clip:
    d = program.d
    own = d.a.imported
    if own is not None and own.clips:
        return Clip(max_norm=1.0, own=True)
    norm = d.pick(_NORMS)
    error, few = d.chance(25), d.chance(80)
    # What is empty has no such norm.
    if norm == "inf" and (without_elements(d.a) or (few and _has_empty_shards(d.a))):
        norm = 2
    # clip_grad_norm_ of fsdp1 has no error_if_nonfinite.
    return Clip(max_norm=d.pick(_SIZES), norm_type=norm, error_if_nonfinite=error and not d.a.fsdp1)


def _has_empty_shards(a: Anatomy) -> bool:
    """Of fsdp2; where it is told otherwise later, perhaps of fewer."""
    ranks = a.case.world_size
    rows = (p.shape[0] for p in a.distinct if p.shape)
    return not a.fsdp1 and any(leaves_out_a_rank(number, ranks) for number in rows)


def _plans(program: Program) -> Iterator[Anatomy]:
    """What holds in each iteration."""
    case = program.d.case
    for gap in program.gaps[:-1]:
        for op in gap:
            case = msgspec.structs.replace(case, plan=op.plan_after(case.plan))
        yield anatomy(msgspec.structs.replace(case, program=()))

"""Gradient scaling."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from fsdpfuzz.case import Op
from fsdpfuzz.case.grad_scaler import GradScaler
from fsdpfuzz.case.operations.overflow import Overflow
from fsdpfuzz.case.operations.unscale import Unscale
from fsdpfuzz.case.operations.update_scale import UpdateScale
from fsdpfuzz.strategies.drawing import Drawing
from fsdpfuzz.strategies.operations import zero_grad

_SCALES = (8.0, 1024.0, 1.0)
_INTERVALS = (2000, 1, 2)


def draw(d: Drawing) -> None:
    """Now and then; in most of these a gradient overflows before some step.

    Some steps are unscaled before, those that clip mostly. Shrinks towards none, then towards one
    that scales by 8 and meets no overflow.
    """
    wanted, overflows, unscales = d.chance(6), d.chance(85), d.chance(50)
    told = GradScaler(init_scale=d.pick(_SCALES), growth_interval=d.pick(_INTERVALS))
    where, which = d.between(0, 13), d.between(0, 127)
    if not wanted:
        return
    program = _with_updates(d.case.program)
    if unscales:
        program = tuple(_unscaled(program))
    scaled = msgspec.structs.replace(d.case, grad_scaler=told, program=program)
    if not d.accepts(scaled):
        return
    d.put(grad_scaler=told, program=program)
    names = [p.fqn for p in d.a.distinct if p.used and p.fqn not in d.a.frozen]
    places = list(_begun(program))
    if not overflows or not names or not places:
        return
    at = places[where % len(places)]
    before, after = program[:at], _cleared(program[at:])
    for name in names[which % len(names) :] + names[: which % len(names)]:
        program = (*before, Overflow(parameter=name), *after)
        if d.accepts(msgspec.structs.replace(scaled, program=program)):
            d.put(program=program)
            return


def _with_updates(program: tuple[Op, ...]) -> tuple[Op, ...]:
    found: list[Op] = []
    for op in program:
        found += [op, UpdateScale()] if op.steps_optimizer else [op]
    return tuple(found)


def _cleared(program: tuple[Op, ...]) -> tuple[Op, ...]:
    """With these gradients gone after the step."""
    after = next(i for i, op in enumerate(program) if isinstance(op, UpdateScale)) + 1
    if after == len(program) or program[after].clears_gradients:
        return program
    return (*program[:after], zero_grad.TO_NONE, *program[after:])


def _begun(program: tuple[Op, ...]) -> Iterator[int]:
    """Where the first operation lies that uses the gradients of a step."""
    for i, op in enumerate(program):
        if op.steps_optimizer:
            at = i
            while at and (program[at - 1].joins_gradients or isinstance(program[at - 1], Unscale)):
                at -= 1
            yield at


def _unscaled(program: tuple[Op, ...]) -> Iterator[Op]:
    """Before what clips, or else right before a step."""
    before = set(_begun(program))
    for i, op in enumerate(program):
        if i in before:
            yield Unscale()
        yield op

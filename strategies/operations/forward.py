"""Forwards without a backward, and several before one."""

from __future__ import annotations

import msgspec

from fsdpfuzz.case import Backward, Forward, Op, stands_alone
from fsdpfuzz.case.paths import within
from fsdpfuzz.case.units.precision import computed_in, reduced_in
from fsdpfuzz.strategies.operations.program import MAX_ITERATIONS, Program

MAX_MICRO_BATCHES = 3
EVALUATION = Forward(grad=False)
"""Without a backward: what it leaves whole stays so."""
MEANWHILE = (*range(12, 16), *range(26, 30))
"""Of 32 forms of a lone forward those that come between a forward and its backward."""
MICRO_BATCH: tuple[Op, ...] = (Forward(), Backward())
"""One more, synchronised."""


def draw(program: Program) -> None:
    """Micro-batches, with and without ``no_sync``; lone forwards between iterations, or in one.

    Shrinks towards one forward for each backward.
    """
    if program.d.apart:
        return
    _accumulated(program)
    _alone(program)


def _accumulated(program: Program) -> None:
    """All micro-batches of a step but its last may leave gradients unreduced.

    Mostly so where there is more to add up than what is reduced and computed in one dtype.
    """
    d = program.d
    wide = any(reduced_in(unit) != computed_in(unit) for unit in d.case.plan.units)
    # With replicas, fsdp2 may leave the all-reduce alone for later.
    wide |= d.case.mesh is not None and not d.a.fsdp1
    if not d.chance(80 if wide else 40):
        return
    synced, joined = not d.chance(85 if wide else 50), d.chance(15)
    more = d.for_each(
        len(program.iterations), MAX_ITERATIONS, lambda: d.between(0, MAX_MICRO_BATCHES - 1)
    )
    for iteration, count in zip(program.iterations, more, strict=True):
        for _ in range(count):
            # Forwards before one backward either all reduce or none does.
            early: list[Op] = [Forward()] if joined else [Forward(sync=synced), Backward()]
            iteration[:0] = early


def _alone(program: Program) -> None:
    """As an evaluation does: of the root, or of a unit below it once the root has run.

    Shrinks towards none, then towards one under ``no_grad``.
    """
    d = program.d
    low = any(computed_in(unit) for unit in d.case.plan.units)
    lower = low and d.a.fsdp1
    often = 35 if lower else 20 if low else 6
    compares = checks_order(program)
    where = d.for_each(
        len(program.gaps),
        MAX_ITERATIONS + 1,
        lambda: d.chance(50) if compares else d.chance(often, fine_tune=25, exec_order=25),
    )
    for i, gap in enumerate(program.gaps):
        if not where[i]:
            continue
        # Of what is thrown away fsdp1 leaves hooks behind, and then little is promised.
        dropped = d.chance(10 if compares or lower else 40)
        lone = Forward(drop=True) if dropped else Forward(grad=False)
        # Not in the first gap: FSDP takes the module that is called first for the root
        # (``FSDPState._lazy_init`` of fsdp2, ``_lazy_init`` in fsdp/_runtime_utils.py).
        # A unit by itself comes out of turn, which an evaluation may do.
        if i and not dropped and d.chance(45 if compares else 30):
            lone = Forward(grad=False, target=_target(program))
        # One choice for both. Rarely in the first gap, where FSDP makes its memory: inference mode
        # leaves that unusable for good, which is known.
        form = d.between(0, 31)
        # As that of a teacher, or of a policy's reference, whose output the loss would take.
        meanwhile = form in MEANWHILE and i < len(program.iterations)
        if not dropped and form >= (16 if i or meanwhile else 30):
            lone = msgspec.structs.replace(lone, inference=True)
        if meanwhile:
            backward = program.iterations[i].index(Backward())
            program.iterations[i].insert(backward, lone)
        else:
            gap += [lone] * (1 + form % 2)


def checks_order(program: Program) -> bool:
    """Whether fsdp1 compares the order of units, but not that of an evaluation."""
    return program.d.a.fsdp1 and program.d.case.debug_level == "DETAIL"


def left_whole(program: Program) -> list[list[Op]]:
    """Gaps before an iteration with a lone forward, which leaves some units whole meanwhile."""
    return [gap for gap in program.gaps[:-1] if any(isinstance(op, Forward) for op in gap)]


def _target(program: Program) -> str:
    """A unit that takes what the inputs are, and may be called by itself."""
    a = program.d.a
    places = [place for path, place in a.by_path.items() if path in a.units]
    fit = [p.path for p in places if p.width_in == a.width_in and p.callable_alone]
    # A root that forwards may leave out has perhaps not been called before.
    late = [root for root in a.roots if any(within(root, path) for path in a.optional)]
    fit = [path for path in fit if not any(within(path, r) and path != r for r in late)]
    fit = [path for path in fit if stands_alone(a, path)]
    return program.d.pick(fit or [""])


def evaluates_before_steps(program: Program) -> bool:
    """Whether a forward without backward comes in the midst of an iteration."""
    return any(EVALUATION in ops for ops in program.iterations)

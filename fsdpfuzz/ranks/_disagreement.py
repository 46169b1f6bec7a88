"""Whether the plain model's training that is right, and the one in float32, agree at all.

How far they are apart is what FSDP is allowed. A mistake that only one of them makes would
therefore hide every error of FSDP that is smaller, in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fsdpfuzz.case import Anatomy, CaseSpec, right_in
from fsdpfuzz.expect import unlike
from fsdpfuzz.expect.rounding import BASELINE_FACTOR, FLOAT32_EPS, blurs_attention, steep
from fsdpfuzz.ranks._compare import Values
from fsdpfuzz.ranks._env import RankEnv
from fsdpfuzz.ranks._reference import (
    NEVER,
    NUDGES,
    Reference,
    Trace,
    nudged_trace,
    nudged_traces,
)


@dataclass(frozen=True, slots=True)
class Apart:
    """Where the two trainings first differ by more than rounding."""

    what: str
    op: int
    off: float
    largest: float
    size: float
    """The largest absolute value of all that the operation left."""


def disagreement(a: Anatomy, env: RankEnv, reference: Reference, left: int) -> tuple[int, str]:
    """From which operation on nothing can be said, at most ``left``, and the mistake, if any.

    Where parameters that are off by one rounding lead either of them about as far away, that is no
    mistake, but a model in which rounding decides: it norms what is zero but for rounding, say.
    Every rank must call it, before it asks the reference for baselines: it runs collectives, and
    adds nudged trainings where one says too little (`steep`).
    """
    left = min(left, _blurred(a, env, reference.wide))
    if not env.anywhere(first_apart(a, reference, left, steep) is not None):
        return left, ""
    if len(reference.nudged) < len(NUDGES):
        reference.nudged = nudged_traces(a, env)
    found = first_apart(a, reference, left)
    if not env.anywhere(found is not None):
        return left, ""
    # One may lie where a gradient is steep and the other beside it: dropout that leaves a norm a
    # single small element, of what a layer in bfloat16 put out.
    wide = nudged_trace(a, env, dtype=getattr(torch, right_in(a, env.backend)))
    # Such values are rounded by more than 1: a softmax of what is equal, but for that, takes either
    # side, and one that is nudged takes the same. Gradients carry it to all ranks.
    exploded = env.anywhere(found is not None and found.size * FLOAT32_EPS >= 1.0)
    if found is None:
        return left, ""
    if exploded:
        return found.op, ""
    moved = reference.nudged[0]
    far = max(_moved(reference.single, moved, found), _moved(reference.wide, wide, found))
    if found.off <= BASELINE_FACTOR * far:
        return found.op, ""
    name = type(a.case.program[found.op]).__name__
    return left, (
        f"the plain model's two trainings disagree: {found.what} at operation {found.op} ({name}) "
        f"differ by {found.off:.3g}, the largest is {found.largest:.3g}"
    )


Far = Callable[[CaseSpec, int, float, float, float], bool]
"""Whether they are too far apart: `unlike`, or `steep`, whose arguments it takes."""


def first_apart(a: Anatomy, reference: Reference, left: int, too_far: Far = unlike) -> Apart | None:
    """Where the plain model's two trainings first differ by more than rounding; None if nowhere.

    Nothing is said of operations from ``left`` on, nor of those that leave no size: nothing is
    compared there. Nothing is said of somebody's own model either: at a kink that nobody knows of
    rounding may decide on anything.
    """
    if a.imported is not None:
        return None
    sizes = reference.wide.sizes
    found = [
        (what, op, gap, sizes[op])
        for what, op, wide, single in _compared(reference.wide, reference.single)
        if op < left and op in sizes and (gap := _measured(wide, single))
    ]
    if not found:
        return None
    # Read back from the device together.
    rows = torch.stack([torch.stack([*gap, size]) for *_, gap, size in found]).tolist()
    for (what, op, *_), (off, largest, size) in zip(found, rows, strict=True):
        if too_far(a.case, op, off, largest, size):
            return Apart(what, op, off, largest, size)
    return None


def _blurred(a: Anatomy, env: RankEnv, right: Trace) -> int:
    """The first forward whose attention hangs on rounding alone, on any rank; else `NEVER`.

    What a node is given is not known: what the model puts out stands for it.
    """
    if not any(place.node is not None and place.node.attends for place in a.places):
        return NEVER
    # On all ranks, as gradients of one come to all others.
    for op, output in zip(right.forwards, right.outputs, strict=True):
        size = float(output.abs().max()) if output.numel() else 0.0
        if env.anywhere(blurs_attention(size)):
            return op
    return NEVER


def _moved(training: Trace, moved: Trace, apart: Apart) -> float:
    """How far another training in the same dtype is off there."""
    gaps = (
        _measured(mine, other)
        for what, op, mine, other in _compared(training, moved)
        if (what, op) == (apart.what, apart.op)
    )
    return max((float(gap[0]) for gap in gaps if gap), default=0.0)


def _compared(one: Trace, other: Trace) -> Iterator[tuple[str, int, Values, Values]]:
    for op, right, output in zip(one.forwards, one.outputs, other.outputs, strict=True):
        yield "outputs", op, {"": right}, {"": output}
    for op, values in one.grads.items():
        yield "gradients", op, values, other.grads[op]
    for op, values in one.params.items():
        yield "parameters", op, values, other.params[op]


def _measured(wide: Values, single: Values) -> tuple[Tensor, ...]:
    """How far all tensors are apart, and the largest element; what one lacks is zeros.

    Nothing where neither has an element.
    """
    pairs = [(wide.get(name), single.get(name)) for name in wide]
    there = [pair for pair in pairs if any(value is not None and value.numel() for value in pair)]
    if not there:
        return ()
    right = torch.cat([_flat(mine, other) for mine, other in there])
    off = torch.cat([_flat(other, mine) for mine, other in there]) - right
    return off.abs().max(), right.abs().max()


def _flat(value: Tensor | None, like: Tensor | None) -> Tensor:
    if value is None:
        assert like is not None, "one of the two is there"
        return torch.zeros_like(like, dtype=torch.float64).reshape(-1)
    return value.detach().to(torch.float64).reshape(-1)

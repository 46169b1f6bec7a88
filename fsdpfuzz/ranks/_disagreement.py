"""Whether the plain model's training that is right, and the one in float32, agree at all.

How far they are apart is what FSDP is allowed. A mistake that only one of them makes would
therefore hide every error of FSDP that is smaller, in silence.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fsdpfuzz.case import Anatomy
from fsdpfuzz.expect import unlike
from fsdpfuzz.ranks._compare import Values
from fsdpfuzz.ranks._reference import Reference


def disagreement(a: Anatomy, reference: Reference, left: int) -> str:
    """Where the plain model's two trainings first differ by more than rounding; empty if nowhere.

    Nothing is said of operations from ``left`` on, nor of those that leave no size: nothing is
    compared there. Nothing is said of somebody's own model either: at a kink that nobody knows of
    rounding may decide on anything.
    """
    if a.imported is not None:
        return ""
    sizes = reference.wide.sizes
    found = [
        (what, op, gap, sizes[op])
        for what, op, wide, single in _compared(reference)
        if op < left and op in sizes and (gap := _measured(wide, single))
    ]
    if not found:
        return ""
    # Read back from the device together.
    rows = torch.stack([torch.stack([*gap, size]) for *_, gap, size in found]).tolist()
    for (what, op, *_), (off, largest, size) in zip(found, rows, strict=True):
        if unlike(a.case, op, off, largest, size):
            name = type(a.case.program[op]).__name__
            return (
                f"the plain model's two trainings disagree: {what} at operation {op} ({name}) "
                f"differ by {off:.3g}, the largest is {largest:.3g}"
            )
    return ""


def _compared(reference: Reference) -> Iterator[tuple[str, int, Values, Values]]:
    wide, single = reference.wide, reference.single
    for op, right, other in zip(wide.forwards, wide.outputs, single.outputs, strict=True):
        yield "outputs", op, {"": right}, {"": other}
    for op, values in wide.grads.items():
        yield "gradients", op, values, single.grads[op]
    for op, values in wide.params.items():
        yield "parameters", op, values, single.params[op]


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

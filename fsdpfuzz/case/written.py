"""A training program as its owner writes it down: plain words, each for one or a few operations."""

from __future__ import annotations

from collections.abc import Sequence

from fsdpfuzz.case.operations import (
    Backward,
    Clip,
    Forward,
    Mode,
    Op,
    Rebuild,
    StateDict,
    Step,
    ZeroGrad,
)
from fsdpfuzz.case.wrap import Plan
from fsdpfuzz.errors import UsageError

WRITTEN = {
    "forward_backward": "loss and backward on the next batch; gradients are reduced",
    "accumulate": "the same, but gradients are left unreduced for the next forward_backward",
    "clip": "clips gradients to the norm 1, or by clip(model); 'clip 0.1' to 0.1",
    "step": "optimizer.step()",
    "zero_grad": "optimizer.zero_grad()",
    "eval": "a forward in eval mode under no_grad, and back to train mode",
    "state_dict": "saves a full state dict and loads it into another model",
    "reload": "saves model and optimizer, makes both anew, loads, and goes on with them",
}
"""The words that ``program()`` of a target may list, and what each does."""
LONGEST = 64
_AFTER_REDUCTION = ("clip", "step", "zero_grad", "state_dict", "reload")


def written(words: Sequence[str], plan: Plan, *, clips: bool = False) -> tuple[Op, ...]:
    """The operations that words of `WRITTEN` mean, for a model that is wrapped as ``plan`` says.

    ``clips`` says that the target has ``clip(model)``. :class:`UsageError`, with the place in the
    list, for an unknown word, and where a gradient is used that is not reduced yet.
    """
    found: list[Op] = []
    unreduced = False
    for place, word in enumerate(words):
        found += _operations(word, place, plan, clips=clips)
        kind = word.split()[0]
        if unreduced and kind in _AFTER_REDUCTION:
            raise UsageError(
                f"program(): {word!r} at place {place} comes after 'accumulate', whose gradients "
                "are not reduced: put 'forward_backward' in between"
            )
        if kind in ("accumulate", "forward_backward"):
            unreduced = kind == "accumulate"
    if not any(isinstance(op, Backward | StateDict) for op in found):
        raise UsageError("program(): it trains nothing: list 'forward_backward', and 'step'")
    if unreduced:
        raise UsageError("program(): it ends with 'accumulate': end with 'forward_backward'")
    return tuple(found)


def _operations(word: str, place: int, plan: Plan, *, clips: bool) -> list[Op]:
    match word.split():
        case ["forward_backward"]:
            return [Forward(), Backward()]
        case ["accumulate"]:
            return [Forward(sync=False), Backward()]
        case ["clip"]:
            return [Clip(max_norm=1.0, own=clips)]
        case ["clip", number]:
            return [Clip(max_norm=_norm(number, place))]
        case ["step"]:
            return [Step()]
        case ["zero_grad"]:
            return [ZeroGrad()]
        case ["eval"]:
            return [Mode(train=False), Forward(grad=False), Mode(train=True)]
        case ["state_dict"]:
            return [StateDict()]
        case ["reload"]:
            return [Rebuild(plan=plan)]
        case _:
            raise UsageError(
                f"program(): {word!r} at place {place} is none of the words {', '.join(WRITTEN)}"
            )


def _norm(text: str, place: int) -> float:
    try:
        norm = float(text)
    except ValueError:
        norm = 0.0
    if not 0.0 < norm <= 1e6:
        raise UsageError(
            f"program(): 'clip {text}' at place {place}: give a norm above 0 and up to 1000000"
        )
    return norm

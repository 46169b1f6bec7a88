"""What the training does: inputs, operations, optimizer."""

from __future__ import annotations

from hypothesis import strategies as st

from fsdpfuzz.spec import (
    Backward,
    Dense,
    Forward,
    Inputs,
    Op,
    Optimizer,
    Step,
    Tokens,
    ZeroGrad,
)
from fsdpfuzz.strategies._choose import Draw, between, chance, pick

MAX_STEPS = 3
MAX_MICRO_BATCHES = 3


@st.composite
def inputs(draw: Draw) -> Inputs:
    """Small dense batches, sequences, or tokens.

    Shrinks towards dense inputs of shape ``(1, 1)`` that require no grad.
    """
    kind = pick(draw, ("dense", "dense", "sequence", "tokens"))
    batch, length = between(draw, 1, 3), between(draw, 1, 3)
    width, requires_grad = between(draw, 1, 9), chance(draw, 12)
    # All drawn for each kind, or tokens would need fewer choices and count as simpler.
    if kind == "tokens":
        return Tokens(batch=batch, length=length)
    return Dense(
        width=width,
        batch=batch,
        length=length if kind == "sequence" else None,
        requires_grad=requires_grad,
    )


@st.composite
def optimizers(draw: Draw) -> Optimizer:
    """SGD with momentum in most draws, because Adam hides a wrong gradient scale.

    Shrinks towards plain SGD with momentum, ``foreach`` left to PyTorch.
    """
    name = pick(draw, ("sgd", "sgd", "sgd", "sgd", "adam", "adamw"))
    foreach = pick(draw, (None, None, False, True))
    momentum = pick(draw, (0.9, 0.9, 0.0))  # drawn for all: fewer choices would look simpler
    if name == "sgd":
        return Optimizer(momentum=momentum, foreach=foreach)
    return Optimizer(name=name, lr=0.01, foreach=foreach)  # type: ignore[arg-type]


@st.composite
def programs(draw: Draw) -> tuple[Op, ...]:
    """One to three optimizer steps, each after one or several micro-batches.

    The micro-batches of a step but its last may leave gradients unreduced (``no_sync``).

    Shrinks towards forward, backward, step.
    """
    steps = between(draw, 1, MAX_STEPS)
    accumulating = chance(draw, 31)
    synced = not (accumulating and chance(draw, 50))
    operations: list[Op] = []
    for step in range(steps):
        if step:
            operations.append(ZeroGrad(set_to_none=not chance(draw, 31)))
        early = between(draw, 0, MAX_MICRO_BATCHES - 1) if accumulating else 0
        for _ in range(early):
            operations += [Forward(sync=synced), Backward()]
        operations += [Forward(), Backward(), Step()]
    return tuple(operations)

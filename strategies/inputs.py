"""What goes into the model."""

from __future__ import annotations

from fsdpfuzz.case import Dense, Tokens
from fsdpfuzz.strategies.drawing import Drawing


def draw(d: Drawing) -> None:
    """Small dense batches, sequences, or tokens.

    Shrinks towards dense inputs of shape ``(1, 1)`` that require no grad.
    """
    kind = d.pick(("dense", "dense", "sequence", "tokens"))
    batch, length = d.between(1, 3), d.between(1, 3)
    width, requires_grad = d.width(), d.chance(30, fine_tune=60, exec_order=30)
    # All drawn for each kind, or tokens would need fewer choices and count as simpler.
    if kind == "tokens":
        d.put(inputs=Tokens(batch=batch, length=length))
        return
    data = Dense(
        width=width,
        batch=batch,
        length=length if kind == "sequence" else None,
        requires_grad=requires_grad,
    )
    d.put(inputs=data)

"""The optimizer."""

from __future__ import annotations

from fsdpfuzz.case import Optimizer, Step
from fsdpfuzz.case.units.precision import keeps_low_grads
from fsdpfuzz.strategies.drawing import Drawing


def draw(d: Drawing) -> None:
    """SGD with momentum in most draws, because Adam hides a wrong gradient scale.

    Of gradients in a lower dtype than their parameters only SGD makes steps, one by one.

    Shrinks towards SGD with momentum, ``foreach`` left to PyTorch.
    """
    name = d.pick(("sgd", "sgd", "sgd", "sgd", "adam", "adamw"))
    foreach = d.pick((None, None, False, True))
    momentum = d.pick((0.9, 0.9, 0.0))  # drawn for all: fewer choices would look simpler
    if keeps_low_grads(d.a.options.values()):
        name, foreach = "sgd", False
    if d.trains and not any(isinstance(op, Step) for op in d.case.program):
        d.put(optimizer=None)
    elif name == "sgd":
        d.put(optimizer=Optimizer(momentum=momentum, foreach=foreach))
    else:
        d.put(optimizer=Optimizer(name=name, lr=0.01, foreach=foreach))  # type: ignore[arg-type]

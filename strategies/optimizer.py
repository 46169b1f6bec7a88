"""The optimizer."""

from __future__ import annotations

from fsdpfuzz.case import Optimizer
from fsdpfuzz.case.optimizer import mixes_tensors
from fsdpfuzz.case.units.precision import keeps_low_grads
from fsdpfuzz.strategies.drawing import Drawing

_ADAPTING = ("adam", "adamw")


def draw(d: Drawing) -> None:
    """SGD with momentum in most draws, because Adam hides a wrong gradient scale.

    Where its state is saved Adam in most: of each parameter that has several tensors, one of
    them a number.

    Of gradients in a lower dtype than their parameters only SGD makes steps, one by one. The
    target of an imported model may have its own, which is drawn as often as all others, or always
    where the target wraps the model.

    Shrinks towards SGD with momentum, ``foreach`` left to PyTorch.
    """
    saved = any(op.saves_optimizer or op.names_state() for op in d.case.program)
    name = d.pick(("sgd", *_ADAPTING) if saved else ("sgd", "sgd", "sgd", "sgd", *_ADAPTING))
    foreach = d.pick((None, None, False, True))
    momentum = d.pick((0.9, 0.9, 0.0))  # drawn for all: fewer choices would look simpler
    own = d.a.imported
    if own is not None and own.has("optimizer") and (own.wrapped or d.chance(50)):
        name = "own"
    if keeps_low_grads(d.a.options.values()):
        name, foreach = "sgd", False
    if mixes_tensors(d.a):
        foreach = False
    if d.trains and not any(op.steps_optimizer for op in d.case.program):
        d.put(optimizer=None)
    elif own is not None and name == "own":
        d.put(optimizer=Optimizer(name="own", momentum=0.9 if own.stateful else 0.0))
    elif name == "sgd":
        d.put(optimizer=Optimizer(momentum=momentum, foreach=foreach))
    else:
        d.put(optimizer=Optimizer(name=name, lr=0.01, foreach=foreach))  # type: ignore[arg-type]

"""The optimizer."""

from __future__ import annotations

import msgspec

from fsdpfuzz.case import Optimizer, anatomy, variants
from fsdpfuzz.case.optimizer import mixes_tensors, skips_the_same
from fsdpfuzz.case.stepped import lacks_gradients
from fsdpfuzz.case.units.precision import keeps_low_grads
from fsdpfuzz.strategies.drawing import Drawing

_ADAPTING = ("adam", "adamw")
_MOMENTA_AND_DECAYS = ((0.9, 0.0), (0.0, 0.0), (0.9, 0.1), (0.9, 0.0), (0.9, 0.0))
_SAVED = ((0.9, 0.0), (0.0, 0.0), (0.9, 0.1), (0.9, 0.1), (0.9, 0.0))
"""Of optimizers whose state is saved: a new one that takes it may step, which decay shows. The
simplest that decays is in the same place, where it stays when nothing is saved any more."""


def draw(d: Drawing) -> None:
    """SGD with momentum in most draws, because Adam hides a wrong gradient scale.

    Where its state is saved Adam in most: of each parameter that has several tensors, one of
    them a number.

    Of gradients in a lower dtype than their parameters only SGD makes steps, one by one. The
    target of an imported model may have its own, which is drawn as often as all others, or always
    where the target wraps the model.

    Weights decay where they may: nothing that is trained lacks a gradient then.

    Shrinks towards SGD with momentum, ``foreach`` left to PyTorch.
    """
    saved = any(op.saves_optimizer or op.names_state() for op in d.case.program)
    name = d.pick(("sgd", *_ADAPTING) if saved else ("sgd", "sgd", "sgd", "sgd", *_ADAPTING))
    foreach = d.pick((None, None, False, True))
    # Drawn for all: fewer choices would look simpler.
    momentum, weight_decay = d.pick(_SAVED if saved else _MOMENTA_AND_DECAYS)
    own = d.a.imported
    if own is not None and own.has("optimizer") and (own.wrapped or d.chance(50)):
        runs = map(anatomy, variants(d.case).values())
        name = "own" if not own.skips_frozen or all(map(skips_the_same, runs)) else name
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
    told, runs = d.case.optimizer, map(anatomy, variants(d.case).values())
    if (
        weight_decay
        and told is not None
        and told.name != "own"
        and not any(map(lacks_gradients, runs))
    ):
        d.put(optimizer=msgspec.structs.replace(told, weight_decay=weight_decay))

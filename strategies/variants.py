"""Other ways to run the training, which must come to the same result."""

from __future__ import annotations

import msgspec

from fsdpfuzz.case import (
    Checkpoint,
    Dense,
    RequiresGrad,
    Variant,
    anatomy,
    coarsest,
    mixed_units,
)
from fsdpfuzz.case.operations.forward import cut_gradients
from fsdpfuzz.strategies import checkpoints
from fsdpfuzz.strategies.drawing import Drawing

_NAMES = ("first", "second")


def draw(d: Drawing) -> None:
    """The same with other checkpoints, or with what is frozen held out of the optimizer instead.

    Of somebody's own model in a lower dtype none: freezing another parameter can choose another
    kernel, which rounds otherwise. Shrinks towards none, then towards one that recomputes the root.
    """
    coarse = d.a.imported is not None and coarsest(d.a) != "float32"
    if d.apart or not d.trains or coarse:
        return
    # A variant is one more training, which costs as much as the case: elsewhere few.
    if d.chance(5, checkpoint=90):
        _recomputed(d)
    elif d.chance(5, fine_tune=60):
        _held_out(d)


def _recomputed(d: Drawing) -> None:
    """One of the variants keeps all activations, unless the case itself does."""
    case = d.case
    forms: list[tuple[Checkpoint, ...]] = [()] if case.checkpoints else [checkpoints.placement(d)]
    if d.chance(40):
        forms.append(checkpoints.placement(d))
    if isinstance(case.inputs, Dense) and any(c.reentrant for form in forms for c in form):
        d.put(inputs=msgspec.structs.replace(case.inputs, requires_grad=True))
    if cut_gradients(d.a, plain=True):
        return
    forms = [_uncut(d, form) for form in forms]
    forms = [form for form in dict.fromkeys(forms) if form != case.checkpoints]
    found = (Variant(name=n, checkpoints=f) for n, f in zip(_NAMES, forms, strict=False))
    d.put(twins=tuple(found))


def _uncut(d: Drawing, form: tuple[Checkpoint, ...]) -> tuple[Checkpoint, ...]:
    """The form, not reentrant where it would leave out gradients that the case has, or backwards.

    Without a backward units stay whole, which the program may not be written for.
    """
    run = msgspec.structs.replace(d.case, checkpoints=form)
    cut = cut_gradients(anatomy(run), plain=True) or not d.accepts(run)
    return checkpoints.not_reentrant(form) if cut else form


def _held_out(d: Drawing) -> None:
    """Only where what is frozen stays so: what is thawed on the way trains in one of them."""
    case = d.case
    changes = d.parting != "never" or any(
        # What the optimizer never held fsdp1 cannot save with its state.
        isinstance(op, RequiresGrad)
        or op.saves_optimizer
        or op.names_state()
        or op.joins_gradients
        or op.asks_trained
        or op.renews
        for op in case.program
    )
    reentrant = any(c.reentrant for c in case.checkpoints)
    if case.frozen and not changes and not reentrant and not mixed_units(d.a):
        d.put(twins=(Variant(name="held_out", frozen=(), held_out=case.frozen),))

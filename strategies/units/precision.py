"""Mixed precision."""

from __future__ import annotations

from typing import Literal

import msgspec

from fsdpfuzz.case import Dropout, Gain, Precision, Unit, dtypes_fit, within
from fsdpfuzz.case.modules import Parametrized
from fsdpfuzz.case.units.precision import computed_in
from fsdpfuzz.strategies.drawing import Drawing, all_units, one_unit
from fsdpfuzz.strategies.wrap import sound

_HALF: tuple[Literal["bfloat16", "float16"], ...] = ("bfloat16", "float16")
_REDUCED: tuple[Literal["float32"] | None, ...] = (None, "float32")


def draw(d: Drawing) -> None:
    """Mostly one for all units: what a unit puts out has to fit the next. Shrinks towards none.

    Buffers are cast as parameters are, which fsdp2 cannot do: what they scale has to fit the next
    layer, unless somebody's own model was seen to run with buffers in float32. So units of fsdp2
    that hold any stay as they are, and those beside them put out float32. The gradient of a
    gain is a sum over all that it scales, which may cancel but for rounding. What a norm makes of a
    row that was dropped can leave the range of float16. A layer in no unit, as a program without
    training may have it, takes float32 alone. What is called by a method of its own has inputs that
    another hook casts.
    """
    buffers = any(place.buffers for place in d.a.places)
    own, casts = d.a.imported, d.a.fsdp1 and "" in d.a.units
    beside = buffers and not casts and own is None
    if any(isinstance(place.node, Dropout | Gain) for place in d.a.places) or (
        beside and d.a.fsdp1
    ):
        return
    root = d.a.by_path[""].node
    often = 40 if root is not None and root.encodes else 15
    if not d.chance(often, fine_tune=52, memory=52) or d.apart:
        return
    runs = _HALF if own is None else own.lower_dtypes(with_buffers=casts or not buffers)
    halves = tuple(half for half in _HALF if half in runs)
    if not halves:
        return
    param, reduce = d.pick(halves), d.pick(_REDUCED)
    buffer = param if buffers and casts else None
    precision = Precision(param=param, reduce=reduce, buffer=buffer)
    if not beside:
        all_units(d, "precision", precision)
    if d.chance(40) or beside:
        other = d.chance(50)
        if d.a.fsdp1:
            _switched(d, precision, other)
        elif other or beside:
            _apart(d, precision)
        else:
            _at_the_root(d, precision)
    # A batch norm that is kept out counts in no unit that a policy makes by size.
    if not dtypes_fit(d.a) or not sound(d) or _turns_in_low(d):
        all_units(d, "precision", None)


# torch.matrix_exp of float16 and bfloat16 on a CPU comes to infinity, or to -21072, for rotations
# by less than a radian (2.7 to 2.15).
def _turns_in_low(d: Drawing) -> bool:
    """Whether an orthogonal weight is computed in a low dtype."""
    turned = (
        d.a.owners[p.fqn]
        for place in d.a.places
        if isinstance(place.node, Parametrized) and place.node.form == "orthogonal"
        for p in place.parameters
    )
    low = (None, "float32")
    return any(o is not None and computed_in(d.a.options[o]) not in low for o in turned)


def _switched(d: Drawing, precision: Precision, keeps: bool) -> None:
    """All units of fsdp1 cast their inputs, so that the root need not do it by another switch.

    Or all keep their gradients in the low dtype.
    """
    if keeps:
        own = msgspec.structs.replace(precision, keep_low_grads=True)
    else:
        own = msgspec.structs.replace(
            precision, cast_inputs=True, cast_root_inputs=not d.chance(50)
        )
    all_units(d, "precision", own)


def _apart(d: Drawing, precision: Precision) -> None:
    """Some units that hold no other compute in low precision and put out float32, others not.

    None that holds buffers, unless somebody's own model runs so.
    """
    units: tuple[Unit, ...] = d.case.plan.units
    paths = [unit.path for unit in units]
    kept = [p.path for p in d.a.places if p.buffers and d.a.imported is None]
    for i, wanted in enumerate(d.mask(len(units))):
        modules = d.a.modules_of(paths[i])
        inside = [*(path for path in paths if path != paths[i]), *kept]
        holds = any(within(path, module) for path in inside for module in modules)
        own = msgspec.structs.replace(precision, output="float32")
        one_unit(d, "precision", own if wanted and not holds else None, unit=i)


def _at_the_root(d: Drawing, precision: Precision) -> None:
    """The root puts out float32 or the low dtype; inner units have nothing left to cast."""
    units: tuple[Unit, ...] = d.case.plan.units
    output, uncast = d.pick(("float32", precision.param, None)), d.chance(50)
    for i, unit in enumerate(units):
        if not unit.path:
            one_unit(d, "precision", msgspec.structs.replace(precision, output=output), unit=i)
        elif uncast and "" in d.a.options:
            one_unit(d, "precision", msgspec.structs.replace(precision, cast_inputs=False), unit=i)

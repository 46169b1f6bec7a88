"""What somebody wrote of a model of their own, with one or two things changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from fsdpfuzz.case import (
    CaseSpec,
    Checkpoint,
    CheckpointKind,
    Dtype,
    Precision,
    anatomy,
    dtypes_fit,
    foreseen_rejections,
    is_sound,
    within,
)
from fsdpfuzz.case.mesh import Mesh, over_mesh
from fsdpfuzz.strategies import freezing
from fsdpfuzz.strategies.drawing import Drawing, all_units

replace = msgspec.structs.replace


def draw(d: Drawing) -> None:
    """Another freeze mask, checkpoint, precision or mesh, one unit more or one less.

    What makes the case unsound, or FSDP documents to refuse, is left as it was. Shrinks towards
    what was written.
    """
    changes = dict.fromkeys(d.pick(_CHANGES) for _ in range(d.between(1, 2)))
    for change in changes:
        before = d.case
        change(d)
        if not _may_be(before, d.case):
            d.case = before


def _may_be(before: CaseSpec, case: CaseSpec) -> bool:
    if not is_sound(case):
        return False
    a, first = anatomy(case), anatomy(before)
    return (
        not foreseen_rejections(a)
        and (dtypes_fit(a) or not dtypes_fit(first))
        and set(a.split_ties) <= set(first.split_ties)
        and (None in first.owners.values() or None not in a.owners.values())
    )


def _frozen(d: Drawing) -> None:
    """Any mask that is drawn for fine-tuning."""
    own = d.a.imported
    if own is not None and (own.leaves_frozen is not None or own.shard_recomputes):
        # Without FSDP nothing is recomputed: what is not frozen there needs no input with grad.
        _unwrapped(d)
    usual, d.focus = d.focus, "fine_tune"
    freezing.draw(d)
    d.focus = usual


def _checkpoint(d: Drawing) -> None:
    """One, not reentrant, that leaves the module what it is: ``shard`` may look for its class."""
    own = d.a.imported
    counted = d.a.changed_buffers
    again = own.recomputable if own is not None else frozenset()
    paths = [
        place.path
        for place in d.a.places
        if place.path
        and place.path in again
        and not any(within(name, place.path) for name in counted)
        and (place.path in d.a.options or not d.a.fsdp1)
    ]
    if paths:
        kind: CheckpointKind = "function" if d.a.fsdp1 else "composable"
        d.put(checkpoints=(Checkpoint(path=d.pick(paths), kind=kind),))


def _precision(d: Drawing) -> None:
    """All units compute in a lower dtype in which the model runs."""
    halves = _halves(d)
    if not halves:
        return
    precision = Precision(param=d.pick(halves), reduce=d.pick((None, "float32")))
    _unwrapped(d)
    all_units(d, "precision", precision)


def _halves(d: Drawing) -> tuple[Dtype, ...]:
    """The dtypes in which any part of the model is known to run, buffers as FSDP leaves them."""
    own, buffers = d.a.imported, any(place.buffers for place in d.a.places)
    return own.lower_dtypes(with_buffers=not buffers) if own is not None else ()


def _unit(d: Drawing) -> None:
    """One more, with the options of the first; or one less, but the root."""
    plan, places = d.case.plan, d.a.places
    told = {unit.precision.param for unit in plan.units if unit.precision is not None}
    if not told <= {None, *_halves(d)}:
        return  # what a unit casts comes uncast to its modules without it
    order = {place.path: i for i, place in enumerate(places)}
    has = {unit.path for unit in plan.units}
    paths = [place.path for place in places if place.alone and place.path]
    if not paths:
        return
    chosen = d.pick(paths)
    units = [unit for unit in plan.units if unit.path != chosen]
    if chosen not in has:
        units.append(replace(plan.units[0], path=chosen))
    units.sort(key=lambda unit: order.get(unit.path, 0))
    _unwrapped(d)
    d.put(plan=replace(plan, units=tuple(units)))


def _mesh(d: Drawing) -> None:
    """Over a mesh of two axes, or another one."""
    size = d.case.world_size
    shards = d.pick([n for n in range(size, 0, -1) if size % n == 0])
    _unwrapped(d)
    d.case = over_mesh(d.case, Mesh(replicate=size // shards, shard=shards))


def _unwrapped(d: Drawing) -> None:
    """The units are made one by one from here on, as ``shard`` was seen to make them."""
    own = d.a.imported
    if own is not None:
        d.put(model=replace(own, wrapped=False, optimizes=False))


# In this order, as a choice shrinks towards the first: the later ones have to take the wrapping out
# of the target's hands.
_CHANGES: Sequence[Callable[[Drawing], None]] = (_frozen, _checkpoint, _unit, _precision, _mesh)

"""Where activations are recomputed or offloaded."""

from __future__ import annotations

import msgspec

from fsdpfuzz.case import (
    TOKENS,
    Anatomy,
    Checkpoint,
    CheckpointKind,
    Dense,
    Fsdp2Unit,
    reentrant_scopes,
    within,
)
from fsdpfuzz.case.checkpoints import evaluates, lacks_keywords
from fsdpfuzz.case.modules import BY_KEYWORDS, SEVERAL
from fsdpfuzz.case.modules.attention import parted
from fsdpfuzz.case.modules.in_place import changed_views
from fsdpfuzz.case.modules.side_output import keeping
from fsdpfuzz.case.policies import finds_root, passed_over
from fsdpfuzz.strategies.drawing import Drawing

MAX_CHECKPOINTS = 3
_BY_CALLERS = ("function", "function_offload")
"""Kinds that whoever calls the module has to know of."""
_KINDS: tuple[CheckpointKind, ...] = ("wrapper", "function", "offload", "function_offload")


def draw(d: Drawing) -> None:
    """Up to three checkpoints, on the same or on other modules than units.

    Shrinks towards none, then towards a non-reentrant ``wrapper`` inside the first unit.
    """
    if d.apart or not d.trains:
        return
    often = 60 if any(_tells(d.a, place.path) for place in d.a.places) else 40
    if d.chance(15 if _prefetches(d) else often, checkpoint=60, state_dict=50):
        place(d, placement(d))


def _prefetches(d: Drawing) -> bool:
    """Whether units are told what to gather early, of which recomputation leaves little to say."""
    return any(
        isinstance(unit, Fsdp2Unit) and (unit.prefetched_in_forward or unit.prefetched_in_backward)
        for unit in d.a.options.values()
    )


def placement(d: Drawing) -> tuple[Checkpoint, ...]:
    """At least one checkpoint; all recompute in the same way, reentrant or not.

    Reentrant checkpointing gives gradients only where an input requires grad, so there is none
    behind an embedding that is frozen, and none around tokens. Most of the reentrant ones
    recompute a whole unit, or what lies in one. The first is often where there is most to get
    wrong: on what calls a unit several times, or is called by keywords, or drops elements.
    """
    a = d.a
    # A reentrant one brings back the generator's state by itself.
    random = any(place.node is not None and place.node.draws_random() for place in a.places)
    reentrant = d.chance(70 if random else 50, fine_tune=10)
    starts = {p.fqn for place in a.places if place.width_in == TOKENS for p in place.parameters}
    own = a.imported is not None
    if reentrant and (own or not starts.isdisjoint(a.frozen)):
        reentrant = False  # whose inputs require grad nobody knows of an imported model
    kinds = tuple(kind for kind in _KINDS if not own or kind not in _BY_CALLERS)
    # A backward that goes back twice recomputes twice.
    once = not any(op.goes_back_again for op in a.case.program)
    kinds = (*kinds, "composable") if once and not (a.fsdp1 or reentrant) else kinds
    views = changed_views(a) if reentrant else frozenset[str]()
    kept = keeping(a)
    paths = [
        p.path
        for p in a.places
        if p.alone
        and p.path not in views
        and not (reentrant and any(within(path, p.path) for path in kept))
        and (not reentrant or (p.width_in != TOKENS and p.kind != SEVERAL))
    ]
    # A recomputation counts a second time, and what is counted may decide what comes out.
    counted = a.changed_buffers if own else a.running_buffers if evaluates(a) else ()
    paths = [path for path in paths if not any(within(name, path) for name in counted)]
    paths = [path for path in paths if not a.by_path[path].by_method]
    paths = [path for path in paths if not path or not passed_over(a, path)]
    if a.imported is not None:
        paths = [path for path in paths if path in a.imported.recomputable]
    # Units first, so that shrinking comes to a checkpoint on a unit.
    paths.sort(key=lambda path: path not in a.options)
    telling = [path for path in paths if _tells(a, path)]
    tells = d.chance(60) and bool(telling)
    chosen: list[Checkpoint] = []
    while paths and len(chosen) < MAX_CHECKPOINTS and (not chosen or d.chance(38)):
        which = d.between(0, len(paths) - 1)
        path = telling[which % len(telling)] if tells and not chosen else paths[which]
        paths.remove(path)
        if own and any(within(path, c.path) or within(c.path, path) for c in chosen):
            continue  # what is recomputed in a recomputation need not be possible
        kind = d.pick(kinds)
        # The composable one works by hooks of the module itself, and has no outside.
        around = d.chance(50) and path in a.options and kind != "composable"
        placed = Checkpoint(
            path=path,
            kind=kind,
            reentrant=reentrant and kind != "offload",
            side="around" if around or _found_again(d, path) else "inside",
        )
        alone = parted(a, not_reentrant((placed,)))
        if alone or lacks_keywords(a, placed):
            placed = msgspec.structs.replace(placed, kind="wrapper")
        # As if none were: `_calm` makes some so.
        if not parted(a, not_reentrant((*chosen, placed))):
            chosen.append(placed)
    order = {place.path: i for i, place in enumerate(a.places)}
    in_order = tuple(sorted(chosen, key=lambda checkpoint: order[checkpoint.path]))
    return in_order if d.chance(9) else _calm(d, in_order)


def _tells(a: Anatomy, path: str) -> bool:
    """Whether checkpointing has more to do for a module than to call it once more."""
    place = a.by_path[path]
    node = place.node
    seeded = node is not None and (node.draws_random() or node.hands_out_rows)
    if place.kind in BY_KEYWORDS or seeded:
        return True
    # A recomputation ends within the last call of a unit that it needs: only where it calls one
    # several times does a call come to its end.
    return (
        place.node is not None
        and place.node.repeats()
        and any(within(u, path) and u != path for u in a.units)
    )


def place(d: Drawing, placed: tuple[Checkpoint, ...]) -> None:
    """Puts them into the case, whose inputs require grad if a reentrant one needs it."""
    data = d.case.inputs
    if isinstance(data, Dense) and any(c.reentrant for c in placed):
        d.put(inputs=msgspec.structs.replace(data, requires_grad=True))
    d.put(checkpoints=placed)


def not_reentrant(placed: tuple[Checkpoint, ...]) -> tuple[Checkpoint, ...]:
    """The same checkpoints, none of them reentrant."""
    return tuple(msgspec.structs.replace(c, reentrant=False) for c in placed)


def _calm(d: Drawing, placed: tuple[Checkpoint, ...]) -> tuple[Checkpoint, ...]:
    """The same, not reentrant where only a part of a unit would be, or the same part twice."""
    from fsdpfuzz.case import anatomy

    scopes = reentrant_scopes(anatomy(msgspec.structs.replace(d.case, checkpoints=placed)))
    return tuple(
        msgspec.structs.replace(c, reentrant=False) if scopes.get(c.path, "whole") != "whole" else c
        for c in placed
    )


def _found_again(d: Drawing, path: str) -> bool:
    """Whether a policy would find the module once more, inside of what is around it."""
    root = not path and any(map(finds_root, d.a.under_each_plan))
    return root or path in d.a.kept_out

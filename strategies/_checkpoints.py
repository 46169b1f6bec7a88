"""Where activations are recomputed or offloaded."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import strategies as st

from fsdpfuzz.spec import TOKENS, Checkpoint, Node, places
from fsdpfuzz.strategies._choose import Draw, between, chance, pick

MAX_CHECKPOINTS = 3
_KINDS = ("wrapper", "function", "offload")


@st.composite
def checkpoint_placements(
    draw: Draw,
    model: Node,
    width: int,
    *,
    units: Collection[str] = (),
    frozen: Collection[str] = (),
) -> tuple[Checkpoint, ...]:
    """Up to three checkpoints, on the same or on other modules than ``units``.

    All of a case recompute in the same way, reentrant or not. Reentrant checkpointing
    gives gradients only where an input requires grad: behind an embedding that is
    ``frozen`` none is drawn, and for dense inputs the caller has to see to it.

    Shrinks towards none, then towards a non-reentrant ``wrapper`` inside the first unit.
    """
    if not chance(draw, 44):
        return ()
    reentrant = chance(draw, 50)
    found = places(model, width)
    starts = {p.fqn for place in found if place.kind == "embedding" for p in place.parameters}
    if reentrant and not starts.isdisjoint(frozen):
        reentrant = False
    paths = [p.path for p in found if not reentrant or p.width_in != TOKENS]
    paths.sort(key=lambda path: path not in units)
    chosen: list[Checkpoint] = []
    while paths and (not chosen or chance(draw, 38)):
        path = paths.pop(between(draw, 0, len(paths) - 1))
        kind = pick(draw, _KINDS)
        around = chance(draw, 50) and path in units
        chosen.append(
            Checkpoint(
                path=path,
                kind=kind,  # type: ignore[arg-type]
                reentrant=reentrant and kind != "offload",
                side="around" if around else "inside",
            )
        )
        if len(chosen) == MAX_CHECKPOINTS:
            break
    order = {place.path: i for i, place in enumerate(found)}
    return tuple(sorted(chosen, key=lambda checkpoint: order[checkpoint.path]))

"""Units that give the loss something beside what they put out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.dimension import Feature
from fsdpfuzz.case.flow import requires
from fsdpfuzz.case.hazards.base import Hazard
from fsdpfuzz.case.hazards.passing_on import ending_with, passing_on
from fsdpfuzz.case.modules.side_output import LAYER, SideOutput, beside
from fsdpfuzz.case.operations.interrupt import root_calls
from fsdpfuzz.case.paths import innermost, join, within
from fsdpfuzz.case.sides import side_of
from fsdpfuzz.case.units.replicas import belongs_to

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy

_ORDER = ("no", "silent", "layer", "apart", "first", "recomputed", "below", "alone")


# What FSDP does before a unit's backward hangs on what the unit puts out, and autograd goes back
# first through what was computed last. The callback at the end of a backward, in which fsdp2
# reduces what is left, is queued by the first of these.
@lru_cache(maxsize=64)
def side_losses(a: Anatomy) -> Mapping[str, str]:
    """Units with a module in them that keeps a part of the loss, and how that lies to the unit.

    ``alone``: the unit manages the module's layer, and nothing that it puts out requires grad in
    some forward, with fsdp2 nothing that a unit of this root puts out. ``first``: the layer is on
    what the unit puts out, and the unit manages it; ``apart``: the same where it does not, and
    ``layer`` of the unit that the layer is then. ``recomputed``: a checkpoint, with fsdp2 one in
    the unit, recomputes what it puts out, and that is kept, or what the layer makes of it.
    ``below``: the unit is a layer that puts out what requires grad, and its root nothing (fsdp1);
    ``silent`` are the other units of that root, or all where no unit manages the layer.
    """
    found: dict[str, str] = {}
    silent = _silent(a)
    for place in a.places:
        node = place.node
        if not isinstance(node, SideOutput):
            continue
        layer = join(place.path, LAYER)
        owner = None if node.on == "no" else a.owners[join(layer, "weight")]
        for module, unit in a.unit_at.items():
            if not within(place.path, module):
                continue
            how = "no"
            if unit == owner and _speaker(a, unit) in silent:
                how = "alone"
            elif _of_output(node) and module in passing_on(a, place.path):
                if _recomputed(a, module, place.path):
                    how = "recomputed"
                elif node.on != "no":
                    how = "first" if unit == owner else "apart"
            found[unit] = max(found.get(unit, "no"), how, key=_ORDER.index)
            if how == "apart" and owner is not None and a.unit_at.get(layer) == owner:
                found[owner] = "layer"
        if a.fsdp1 and node.on != "no":
            _beside_a_silent_root(a, layer, owner, silent, found)
    return found


def _beside_a_silent_root(
    a: Anatomy, layer: str, owner: str | None, silent: frozenset[str], found: dict[str, str]
) -> None:
    """Notes the units of a root that puts out nothing, though it has a layer that gives the loss.

    The layer is a unit itself, or none manages it.
    """
    around = innermost(layer, a.unit_at)
    if around is None or (owner is not None and (owner in silent or a.unit_at.get(layer) != owner)):
        return
    root = belongs_to(a, a.unit_at[around])
    if root not in silent:
        return
    for unit in a.units:
        if belongs_to(a, unit) == root and found.get(unit, "no") == "no":
            found[unit] = "silent"
    if owner is not None:
        found[owner] = "below"


def _of_output(node: SideOutput) -> bool:
    """Whether what it keeps comes of what it puts out: its input may be that, too."""
    return node.on != "input" or node.body.returns_its_input()


# A recomputation calls fsdp1's hooks once more, and ends before the last of them: where nothing
# behind what is kept is needed.
def _recomputed(a: Anatomy, module: str, path: str) -> bool:
    """Whether a checkpoint recomputes what a module of a unit, and the one at ``path``, put out."""
    return any(
        c.recomputes
        and within(path, c.path)
        and c.path in ending_with(a, path)
        and (a.fsdp1 or (within(c.path, module) and (c.path, side_of(a, c)) != (module, "around")))
        for c in a.case.checkpoints
    )


def _speaker(a: Anatomy, unit: str) -> str:
    """Whose outputs tell a unit that a backward has begun: fsdp1 asserts of each that it knows."""
    return unit if a.fsdp1 else belongs_to(a, unit)


def _silent(a: Anatomy) -> frozenset[str]:
    """Units (fsdp1), or roots, that put out nothing which requires grad, in some forward."""
    layers = beside(a)
    found: set[str] = set()
    for _, op, now in a.situations(0) if layers else ():
        if not op.waits:
            continue
        requires_grad = requires(a, now)
        called: set[str] = set()
        heard: set[str] = set()
        for call in root_calls(a, now):
            own = (p.fqn for p in a.by_path[call.path].parameters if p.used)
            inner = [m for m in a.unit_at if within(call.path, m)]
            called.update(_speaker(a, a.unit_at[m]) for m in inner)
            if call.input_grad or any(map(requires_grad, own)):
                # What a layer puts out goes past all that is around it.
                inner = [m for m in inner if call.path not in layers or m == call.path]
                heard.update(_speaker(a, a.unit_at[m]) for m in inner)
        found |= called - heard
    return frozenset(found)


class SideLossDimension(Hazard):
    """Whether a part of the loss goes past what a unit puts out."""

    name = "side_loss"
    features: ClassVar[Mapping[str, Feature]] = {
        "side_loss": Feature(
            about="no, apart, first, recomputed, below, alone (any is): how what a module keeps "
            "for the loss lies to what a unit around it puts out: a layer on that, in no or "
            "another unit; a layer on that, in the unit, whose backward then begins with it; that "
            "itself, which a checkpoint recomputes, with fsdp2 one in the unit; a layer that is a "
            "unit, below a root that puts out nothing which requires grad (fsdp1); a layer in a "
            "unit that puts out nothing which requires grad, with fsdp2 in none of its root",
            group="Wrapping",
            # In too few programs for each pair with it to be waited for.
            values=("no",),
            open=True,
        ),
    }
    unit_features: ClassVar[Mapping[str, Feature]] = {
        "side_loss": Feature(
            about="no, layer (the unit is one, on what another puts out), apart, first, "
            "recomputed, below, silent (beside a unit that is below, or a layer in no unit), "
            "alone: how what a module in the unit keeps for the loss lies to what the unit puts "
            "out",
            group="Wrapping",
            values=_ORDER,
        ),
    }

    def values(self, a: Anatomy) -> Iterator[tuple[str, str]]:
        """Of any unit, under any plan."""
        found = (how for b in a.under_each_plan for how in side_losses(b).values())
        yield "side_loss", max(found, default="no", key=_ORDER.index)

    def unit_values(self, a: Anatomy, path: str) -> Iterator[tuple[str, str]]:
        """Of the unit."""
        yield "side_loss", side_losses(a).get(path, "no")

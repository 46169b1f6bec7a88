"""Models on the meta device."""

from __future__ import annotations

from fsdpfuzz.case.meta_init import WAYS, MetaInit, MetaInitDimension, mixed_unit
from fsdpfuzz.errors import CaseError
from fsdpfuzz.strategies.drawing import Drawing


def draw(d: Drawing) -> None:
    """All of the model, or one module, where that gets its values by the way drawn.

    Mostly one alone that holds nothing but buffers where fsdp1 has such modules to materialise.
    Shrinks towards nothing on the meta device, then towards the whole model, reset.
    """
    bare = [p for p in d.a.places[1:] if d.a.fsdp1 and p.buffers and not p.parameters]
    if not d.chance(10):
        return
    ways = WAYS[d.case.api]
    # What nothing materialises has to be refused, where nothing else comes before that.
    ways = (*ways, *(way for way in ways if way == "never"))
    way, partly, alone = d.pick(ways), d.chance(30), d.chance(80)
    places = [p for p in d.a.places[1:] if partly and mixed_unit(d.a, p.path) is None]
    places = bare if bare and alone else places
    part = d.pick(places).path if places else ""
    before = d.case
    d.put(meta_init=MetaInit(by=way, part=part))
    if not _fits(d):
        d.case = before


def _fits(d: Drawing) -> bool:
    try:
        MetaInitDimension().check(d.a)
    except CaseError:
        return False
    return True

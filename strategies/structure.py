"""The model: a tree of small modules, with odd widths, every kind beside every other."""

from __future__ import annotations

from fsdpfuzz.case import Activation, Dense, Linear, Node, Sequential, Switch
from fsdpfuzz.case.modules.method import Method
from fsdpfuzz.strategies.drawing import Drawing
from fsdpfuzz.strategies.modules.growth import Growth

MAX_PATH_WIDTH = 6


def draw(d: Drawing) -> None:
    """A model for the inputs; for the execution order one that switches paths.

    Now and then (fsdp2) all of it can be called by a method, too.

    Shrinks towards one ``Linear(out=1, bias=False)``, behind an ``Embedding(1, 1)`` if it
    takes tokens.
    """
    if d.chance(3, exec_order=90):
        d.put(model=_switching(d))
        return
    width = d.case.inputs.width_out()
    square = (width or d.width()) if d.chance(19) else None
    model = Growth(d, square).grown(width)
    d.put(model=Method(body=model) if d.chance(6) and not d.a.fsdp1 else model)


def _switching(d: Drawing) -> Node:
    """A layer, a switch, a layer.

    Where ranks part and nothing stops them the paths' units have equal numbers of elements, so
    that collectives match. fsdp2 has no check of the order: there all ranks switch or none.
    """
    case = d.case
    if not isinstance(case.inputs, Dense):
        d.put(inputs=Dense(width=d.between(1, MAX_PATH_WIDTH), batch=case.inputs.batch))
    first_api = d.a.fsdp1 and case.world_size > 1
    d.parting = d.pick(("never", "all", "later", "first") if first_api else ("never", "all"))
    unchecked = d.parting == "first" and case.debug_level != "DETAIL"
    width = d.between(1, MAX_PATH_WIDTH)
    paths = _paths(d, width, alike=d.parting == "later" or unchecked)
    if d.chance(25):
        paths = (*paths, paths[0])
    layers = (Linear(out=width, bias=False), Activation(), Switch(children=paths))
    return Sequential(children=(*layers, Linear(out=1, bias=False)))


def _paths(d: Drawing, width: int, *, alike: bool) -> tuple[Node, ...]:
    """``alike`` ones have units of equal length one by one: copies of each other, or one square
    layer beside two that are half as wide."""
    first = _path(d, width)
    if not alike:
        return first, _path(d, width)
    if d.chance(50) and width % 2 == 0:
        # Flat parameters that show the original ones are padded, so their lengths differ.
        d.flat = True
        return Linear(out=width, bias=False), _bent(width, width // 2, bias=False)
    return first, first


def _path(d: Drawing, width: int) -> Node:
    bent, inner, bias = d.chance(50), d.between(1, MAX_PATH_WIDTH), d.chance(50)
    return _bent(width, inner, bias=bias) if bent else Linear(out=width, bias=bias)


def _bent(width: int, inner: int, *, bias: bool) -> Node:
    layers = (Linear(out=inner, bias=bias), Activation(), Linear(out=width, bias=bias))
    return Sequential(children=layers)

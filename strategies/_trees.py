"""Model trees: small, with odd widths, every kind of module beside every other."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from fsdpfuzz.spec import (
    TOKENS,
    Activation,
    Branches,
    Buffered,
    Embedding,
    Gain,
    Idle,
    Linear,
    Lora,
    Matrix,
    Node,
    Norm,
    Repeat,
    Residual,
    Sequential,
    parameters,
    width_after,
)
from fsdpfuzz.strategies._choose import Draw, between, chance, mask, pick

MAX_WIDTH = 9
MAX_LEAVES = 7
MAX_DEPTH = 3

_LEAVES = ("activation", "norm", "gain", "lora", "buffered", "idle")
_CONTAINERS = ("residual", "repeat", "sequential", "branches", "matrix")
TREE_FEATURES: frozenset[str] = frozenset({*_LEAVES, *_CONTAINERS})
"""What `module_trees` can leave out of a tree. Linear layers and embeddings always remain."""

_GO_ON = (45, 85, 70)
"""Percent of chains that go on: inner ones, the outermost after one block, and after more."""

_SMOOTH = ("gelu", "silu", "tanh", "softplus")
"""A kink would make float32 and float64 take different sides of it."""

_SPARE = {"activation": 1, "gain": 2, "idle": 2}
"""Choices without effect: what takes fewer than a linear layer would be simpler than one."""

_MIN_NORM_WIDTH = {"layer": 3, "rms": 2}
"""Below, what is normalised is constant or a sign, and the gradient is rounding alone."""


@dataclass(slots=True)
class _Growth:
    """One tree while it is drawn."""

    draw: Draw
    allowed: tuple[str, ...]
    square: int | None
    leaves: int = MAX_LEAVES
    containers: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.containers = tuple(kind for kind in _CONTAINERS if kind in self.allowed)


@st.composite
def module_trees(
    draw: Draw,
    width: int = 4,
    *,
    banned: frozenset[str] = frozenset(),
    square: bool = False,
) -> Node:
    """Trees that take data of ``width``, or tokens where it is ``TOKENS``.

    At least one parameter is used. Which of `TREE_FEATURES` occur at all is drawn first,
    less those in ``banned``, so that some trees hold many of one kind. ``square`` gives
    the layers one common width, so that parameters can be tied.

    Shrinks towards one ``Linear(out=1, bias=False)``, behind an ``Embedding(1, 1)`` if it
    takes tokens.
    """
    optional = (*_LEAVES, *_CONTAINERS)
    present = zip(optional, mask(draw, len(optional)), strict=True)
    allowed = tuple(kind for kind, occurs in present if occurs and kind not in banned)
    common = (width or between(draw, 1, MAX_WIDTH)) if square else None
    growth = _Growth(draw, allowed, common)
    blocks = _chain(growth, width, depth=1, steady=False)
    tree = _joined(blocks)
    if not any(parameter.used for parameter in parameters(tree, width)):
        out = width_after(tree, width)
        tree = Sequential(children=(*blocks, _linear(growth, out)))
    return tree


def _joined(blocks: list[Node]) -> Node:
    return blocks[0] if len(blocks) == 1 else Sequential(children=tuple(blocks))


def _chain(
    growth: _Growth, width: int, *, depth: int, out: int | None = None, steady: bool = True
) -> list[Node]:
    """Blocks one after another, from ``width`` to ``out`` if that is given.

    ``steady`` says that the batch size must stay as it is, too.
    """
    blocks: list[Node] = []
    after = width
    while growth.leaves > 0 or not blocks:
        go_on = _GO_ON[0 if depth > 1 else min(len(blocks), 2)] if blocks else None
        block = growth.draw(_elements(growth, after, depth, out, steady, go_on))
        if block is None:
            break
        blocks.append(block)
        after = width_after(block, after)
    if out is not None and after != out:
        blocks.append(_linear(growth, after, out))
    return blocks


@st.composite
def _elements(
    draw: Draw,
    growth: _Growth,
    width: int,
    depth: int,
    out: int | None,
    steady: bool,
    go_on: int | None,
) -> Node | None:
    """A block, or in some draws None: the end of a chain. None for ``go_on`` forbids that.

    A strategy of its own, flag and block together, so that shrinking can take it out.
    """
    if not chance(draw, go_on or 100) and go_on is not None:
        return None
    return _block(growth, width, depth=depth, out=out, steady=steady)


def _block(growth: _Growth, width: int, *, depth: int, out: int | None, steady: bool) -> Node:
    kinds = ["linear", *(kind for kind in _LEAVES if kind in growth.allowed)]
    if width < _MIN_NORM_WIDTH["rms"] and "norm" in kinds:
        kinds.remove("norm")
    if depth < MAX_DEPTH and growth.leaves > 1:
        kinds += growth.containers
    # A second "linear" keeps parameters in the majority.
    kind = pick(growth.draw, (*kinds, "linear") if len(kinds) > 1 else kinds)
    if width == TOKENS:
        # As many choices as a linear layer, so that shrinking can put one for the other.
        out, rows = _width(growth), between(growth.draw, 1, 9)
        return Embedding(out=out, rows=growth.square or rows)
    if kind in growth.containers:
        return _container(growth, kind, width, depth, out, steady)
    return _leaf(growth, kind, width, out)


def _leaf(growth: _Growth, kind: str, width: int, out: int | None) -> Node:
    draw = growth.draw
    growth.leaves -= 1
    for _ in range(_SPARE.get(kind, 0)):
        between(draw, 0, 0)
    match kind:
        case "activation":
            return Activation(fn=_SMOOTH[between(draw, 0, 3)])  # type: ignore[arg-type]
        case "norm":
            wide = width >= _MIN_NORM_WIDTH["layer"]
            rms = chance(draw, 50) if wide else True
            return Norm(variant="rms" if rms else "layer", affine=not chance(draw, 19))
        case "gain":
            return Gain()
        case "lora":
            growth.leaves -= 1
            rank = between(draw, 1, 3)
            return Lora(out=_width(growth, out), rank=rank, bias=chance(draw, 50))
        case "buffered":
            return Buffered(persistent=not chance(draw, 50), updates=chance(draw, 50))
        case "idle":
            return Idle()
        case _:
            return _linear(growth, width, out, spare=True)


def _linear(growth: _Growth, width: int, out: int | None = None, *, spare: bool = False) -> Linear:
    """A linear layer; one that closes a chain must put out ``out``, a spare one need not."""
    chosen = out if out is not None and not spare else _width(growth, out)
    if growth.square is not None and chosen == growth.square == width:
        return Linear(out=chosen, bias=chance(growth.draw, 25))
    return Linear(out=chosen, bias=chance(growth.draw, 50))


def _width(growth: _Growth, out: int | None = None) -> int:
    """A width, most often ``out`` where a chain has to end with that."""
    if out is not None and not chance(growth.draw, 31):
        return out
    chosen = between(growth.draw, 1, MAX_WIDTH)
    return chosen if growth.square is None else growth.square  # no fewer choices if square


def _container(
    growth: _Growth, kind: str, width: int, depth: int, out: int | None, steady: bool
) -> Node:
    draw, inner = growth.draw, depth + 1
    match kind:
        case "residual":
            return Residual(body=_joined(_chain(growth, width, depth=inner, out=width)))
        case "repeat":
            return _repeat(growth, width, inner)
        case "branches":
            return _branches(growth, width, inner, out, steady)
        case "matrix":
            body = _joined(_chain(growth, width, depth=inner, out=out, steady=steady))
            return Matrix(body=body, buffered=chance(draw, 50))
        case _:
            blocks = _chain(growth, width, depth=inner, out=out, steady=steady)
            return Sequential(children=tuple(blocks))


def _repeat(growth: _Growth, width: int, depth: int) -> Repeat:
    blocks = _chain(growth, width, depth=depth, out=width)
    times = between(growth.draw, 2, 3)
    no_grad = "off"
    if chance(growth.draw, 38):
        no_grad = "body"
        if len(blocks) > 1 and width_after(blocks[0], width) == width:
            no_grad = pick(growth.draw, ("body", "first_child"))
    return Repeat(body=_joined(blocks), times=times, no_grad=no_grad)  # type: ignore[arg-type]


def _branches(growth: _Growth, width: int, depth: int, out: int | None, steady: bool) -> Branches:
    merge = pick(growth.draw, ("concat", "sum") if steady else ("concat", "sum", "stack"))
    side = chance(growth.draw, 12)
    equal = out if merge != "concat" and out is not None else None
    if side:
        equal = width
    children: list[Node] = []
    while True:
        children.append(_joined(_chain(growth, width, depth=depth, out=equal)))
        if merge != "concat" and equal is None:
            equal = width_after(children[0], width)
        if len(children) > 2 or not chance(growth.draw, 75):
            break
    return Branches(children=tuple(children), merge=merge, side=side)  # type: ignore[arg-type]

"""Cases in which ranks take different paths, or all of them another one than before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from hypothesis import strategies as st

from fsdpfuzz.spec import (
    Activation,
    Backward,
    CaseSpec,
    Dense,
    Flip,
    Forward,
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Mode,
    Node,
    Op,
    Optimizer,
    Plan,
    Sequential,
    Step,
    Switch,
    ZeroGrad,
    places,
)
from fsdpfuzz.strategies._cases import off_ground
from fsdpfuzz.strategies._choose import Draw, between, chance, pick
from fsdpfuzz.strategies._ground import GROUND

MAX_WIDTH = 6
MAX_ITERATIONS = 3
SWITCH = "2"

When = Literal["never", "all", "later", "first"]
Level = Literal["OFF", "INFO", "DETAIL"]
_SHARDINGS = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
_PREFETCHES = ("BACKWARD_PRE", "BACKWARD_POST", None)


def exec_order_cases(
    *,
    apis: Sequence[str] = ("fsdp1", "fsdp2"),
    world_sizes: Sequence[int] = (2,),
    avoid: frozenset[str] = frozenset(),
) -> st.SearchStrategy[CaseSpec]:
    """A model with several paths, each with units of its own, and a program that switches.

    Some ranks switch before the first iteration or later, all of them do, or none does, over
    cycles of training and evaluation, at every debug level. Where ranks part and nothing
    stops them, the paths' units have equal numbers of elements, so that collectives match;
    fsdp2 has no check of the order, so there all ranks switch or none.

    Shrinks towards a model of linear layers, one element each, that never switches, and one
    iteration at the level OFF.
    """
    return _exec_order_cases(tuple(apis), tuple(world_sizes), frozenset(GROUND) - avoid)


@st.composite
def _exec_order_cases(
    draw: Draw, apis: tuple[str, ...], world_sizes: tuple[int, ...], ground: frozenset[str]
) -> CaseSpec:
    api, world_size = pick(draw, apis), pick(draw, world_sizes)
    parting = api == "fsdp1" and world_size > 1
    when: When = pick(draw, ("never", "all", "later", "first") if parting else ("never", "all"))
    level: Level = pick(draw, ("OFF", "DETAIL", "DETAIL", "DETAIL", "INFO"))
    alike = when == "later" or (when == "first" and level != "DETAIL")
    model, orig = _model(draw, alike)
    width = between(draw, 1, MAX_WIDTH)
    data = Dense(width=width, batch=between(draw, 1, 3), requires_grad=chance(draw, 25))
    together = when in ("never", "all")
    plan: Plan = (
        _fsdp1(draw, model, width, orig, when, together=together)
        if api == "fsdp1"
        else _fsdp2(draw, model, width)
    )
    # What accumulates over a flip would stay in a path that nobody takes any more.
    stepping = chance(draw, 60) or when != "never"
    frozen = chance(draw, 50)
    inactive = tuple(
        parameter.fqn
        for place in places(model, width)
        for parameter in place.parameters
        if place.path.startswith(f"{SWITCH}.") and not place.path.startswith(f"{SWITCH}.branches.0")
    )
    opened = chance(draw, 6)
    case = CaseSpec(
        world_size=world_size,
        seed=between(draw, 0, 127),
        model=model,
        inputs=data,
        plan=plan,
        frozen=inactive if frozen else (),
        optimizer=Optimizer() if stepping else None,
        program=_program(draw, when, world_size, stepping, together=together),
        debug_level=level,
    )
    return off_ground(case, ground if opened else frozenset())


def _model(draw: Draw, alike: bool) -> tuple[Node, bool]:
    """A layer, a switch, a layer; and whether units show their original parameters.

    ``alike`` paths have units of equal length one by one: copies of each other, or, while
    flat parameters need no alignment, one square layer and two that are half as wide.
    """
    width, orig = between(draw, 1, MAX_WIDTH), chance(draw, 50)
    halves, more = chance(draw, 50), chance(draw, 25)
    square: Node = Linear(out=width, bias=False)
    first = _path(draw, width)
    if alike and halves and width % 2 == 0 and not orig:
        children: tuple[Node, ...] = (square, _bent(width, width // 2, bias=False))
    elif alike:
        children = (first, first)
    else:
        children = (first, _path(draw, width))
    if more:
        children = (*children, children[0])
    layers = (Linear(out=width, bias=False), Activation(), Switch(children=children))
    return Sequential(children=(*layers, Linear(out=1, bias=False))), orig


def _path(draw: Draw, width: int) -> Node:
    bent, inner, bias = chance(draw, 50), between(draw, 1, MAX_WIDTH), chance(draw, 50)
    return _bent(width, inner, bias=bias) if bent else Linear(out=width, bias=bias)


def _bent(width: int, inner: int, *, bias: bool) -> Node:
    layers = (Linear(out=inner, bias=bias), Activation(), Linear(out=width, bias=bias))
    return Sequential(children=layers)


def _units(draw: Draw, model: Node, width: int) -> list[str]:
    """The root, the paths, and now and then the layer behind them."""
    found = [place.path for place in places(model, width)]
    paths = [path for path in found if path.rpartition(".")[0] == f"{SWITCH}.branches"]
    return ["", *paths, *(["3"] if chance(draw, 40) else [])]


def _fsdp1(
    draw: Draw, model: Node, width: int, orig: bool, when: When, *, together: bool
) -> Fsdp1Plan:
    """A plan under which a path that is left behind leaves nothing whole.

    Prefetching follows the order of before, on some ranks only once they have parted, and
    ``SHARD_GRAD_OP`` keeps whole what no backward reaches.
    """
    shardings = _SHARDINGS if when == "never" else ("FULL_SHARD", "NO_SHARD")
    options: dict[str, Any] = {
        "sharding": pick(draw, shardings),
        "backward_prefetch": pick(draw, _PREFETCHES) if together else None,
        "forward_prefetch": together and chance(draw, 25),
        "use_orig_params": orig,
    }
    units = tuple(Fsdp1Unit(path=path, **options) for path in _units(draw, model, width))
    return Fsdp1Plan(units=units)


def _fsdp2(draw: Draw, model: Node, width: int) -> Fsdp2Plan:
    reshard = pick(draw, (None, True, False))
    units = tuple(
        Fsdp2Unit(path=path, reshard_after_forward=reshard) for path in _units(draw, model, width)
    )
    return Fsdp2Plan(units=units)


def _program(
    draw: Draw, when: When, world_size: int, stepping: bool, *, together: bool
) -> tuple[Op, ...]:
    """What an evaluation leaves whole is gathered again by those alone who come from elsewhere."""
    iteration: tuple[Op, ...] = (Forward(), Backward())
    if stepping:
        iteration = (*iteration, Step(), ZeroGrad())
    before = iteration * between(draw, 1, MAX_ITERATIONS)
    after = iteration * between(draw, 1, 2)
    evaluated, cycles = chance(draw, 40) and together, between(draw, 1, 2)
    some = between(draw, 1, max(1, 2**world_size - 2))
    if evaluated:
        drop = chance(draw, 50)
        forward = Forward(drop=True) if drop else Forward(grad=False)
        before = (*before, Mode(train=False), *(forward,) * cycles, Mode(train=True))
    ranks = tuple(rank for rank in range(world_size) if some >> rank & 1)
    match when:
        case "never":
            return before * cycles
        case "all":
            everyone = Flip(path=SWITCH, ranks=tuple(range(world_size)))
            return (*before, everyone, *after)
        case "later":
            return (*before, Flip(path=SWITCH, ranks=ranks), *after)
        case _:
            return (Flip(path=SWITCH, ranks=ranks), *after)

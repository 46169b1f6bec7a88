"""Which modules become units, and with which options."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, get_args

from hypothesis import strategies as st

from fsdpfuzz.spec import (
    Fsdp1Plan,
    Fsdp1Unit,
    Fsdp2Plan,
    Fsdp2Unit,
    Node,
    NodeKind,
    Place,
    Repeat,
    innermost,
    places,
    units_among,
    within,
)
from fsdpfuzz.strategies._choose import Draw, between, chance, mask, pick

MAX_UNITS = 6

_SHARDINGS = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
_PREFETCHES = ("BACKWARD_PRE", "BACKWARD_POST", None)
_NODE_KINDS = frozenset(get_args(NodeKind))


@st.composite
def fsdp1_plans(draw: Draw, model: Node, width: int) -> Fsdp1Plan:
    """Plans of ``FullyShardedDataParallel``: nested by hand, by policy, or by classes.

    ``use_orig_params`` and ``limit_all_gathers`` are the same in all units, as FSDP wants
    it. Where the root is no unit every parameter lies in some unit.

    Shrinks towards the root alone, wrapped by hand with PyTorch's defaults.
    """
    found = places(model, width)
    wrap = pick(draw, ("nested", "custom_policy", "module_classes"))
    common: dict[str, Any] = {
        "use_orig_params": chance(draw, 50),
        "limit_all_gathers": not chance(draw, 19),
    }
    options = _fsdp1_options(draw)
    if wrap == "module_classes":
        kinds = [k for k in dict.fromkeys(p.kind for p in found[1:]) if k in _NODE_KINDS]
        classes = [k for k, occurs in zip(kinds, mask(draw, len(kinds)), strict=True) if occurs]
        root = Fsdp1Unit(path="", **common, **options)
        plan = Fsdp1Plan(units=(root,), wrap="module_classes", classes=tuple(classes))  # type: ignore[arg-type]
        resolved = set(units_among(found, plan))
        if classes and first_children(found, resolved) <= resolved:
            return plan
        wrap = "nested"
    paths = _unit_paths(draw, found, may_open_root=wrap == "nested")
    differ = chance(draw, 25) and len(paths) > 1
    units = [
        Fsdp1Unit(path=path, **common, **(_fsdp1_options(draw) if differ and i else options))
        for i, path in enumerate(paths)
    ]
    return Fsdp1Plan(units=tuple(units), wrap=wrap)  # type: ignore[arg-type]


@st.composite
def fsdp2_plans(draw: Draw, model: Node, width: int, *, world_size: int = 2) -> Fsdp2Plan:
    """Plans of ``fully_shard``: any set of modules, each with its ``reshard_after_forward``.

    An integer there divides ``world_size``. Where the root is no unit every parameter lies
    in some unit.

    Shrinks towards the root alone with PyTorch's defaults.
    """
    paths = _unit_paths(draw, places(model, width), may_open_root=True)
    sizes = tuple(n for n in range(1, world_size + 1) if world_size % n == 0)
    values: tuple[bool | int | None, ...] = (None, None, True, False, *sizes)
    common = pick(draw, values)
    differ = chance(draw, 31) and len(paths) > 1
    units = [
        Fsdp2Unit(path=path, reshard_after_forward=pick(draw, values) if differ and i else common)
        for i, path in enumerate(paths)
    ]
    return Fsdp2Plan(units=tuple(units))


def _fsdp1_options(draw: Draw) -> dict[str, Any]:
    return {
        "sharding": pick(draw, _SHARDINGS),
        "backward_prefetch": pick(draw, _PREFETCHES),
        "forward_prefetch": chance(draw, 40),
    }


def _unit_paths(draw: Draw, found: Sequence[Place], *, may_open_root: bool) -> list[str]:
    """Paths of the units in the order of the places, the root's first."""
    root, inner = found[0], found[1:]
    open_root = chance(draw, 12) and may_open_root and bool(inner) and not root.parameters
    bare = chance(draw, 12)
    holding = _holding(found)
    chosen: set[str] = set() if open_root else {""}
    candidates = [place.path for place in inner if bare or place.path in holding]
    while chance(draw, 75) and candidates and len(chosen) < MAX_UNITS:
        chosen.add(candidates.pop(between(draw, 0, len(candidates) - 1)))
    if open_root:
        chosen.update(_uncovered(found, frozenset(chosen)))
    chosen |= first_children(found, chosen)
    return [place.path for place in found if place.path in chosen]


def first_children(found: Sequence[Place], units: Collection[str]) -> set[str]:
    """First children of units that are called on their own, so must be units as well."""
    repeats = (p for p in found if isinstance(p.node, Repeat) and p.node.no_grad == "first_child")
    bodies = (f"{place.path}.body".lstrip(".") for place in repeats)
    return {f"{body}.0" for body in bodies if body in units}


def _holding(found: Sequence[Place]) -> frozenset[str]:
    """Paths of the places with parameters in them, at any depth."""
    owners = [place.path for place in found if place.parameters]
    return frozenset(p.path for p in found if any(within(owner, p.path) for owner in owners))


def _uncovered(found: Sequence[Place], chosen: frozenset[str]) -> set[str]:
    """The outermost modules, below the root, of the parameters that lie in no unit."""
    tops: set[str] = set()
    for place in found:
        if not place.parameters or innermost(place.path, chosen) is not None:
            continue
        callable_ = {p.path for p in found if p.path}
        parts = place.path.split(".")
        paths = (".".join(parts[: i + 1]) for i in range(len(parts)))
        tops.add(next(path for path in paths if path in callable_))
    return tops

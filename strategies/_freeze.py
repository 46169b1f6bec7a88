"""Which parameters are tied to each other and which are frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from fsdpfuzz.spec import Node, Parameter, Place, Tie, adapter_names, parameters, places
from fsdpfuzz.strategies._choose import Draw, between, chance, mask, pick

MAX_TIES = 3
_MASKS = ("none", "none", "units", "random", "alternate", "adapters")


@st.composite
def ties(draw: Draw, model: Node, width: int, *, at_least: int = 0) -> tuple[Tie, ...]:
    """Up to three ties between parameters of equal name and shape, each to an earlier one.

    Equal in their last name, ``weight`` with ``weight``: two parameters of one module that are
    the same object have no use, and a state dict cannot tell them apart.

    ``at_least`` asks for that many, as far as the shapes allow. Shrinks towards none, then
    towards one tie of the first two parameters that can be tied.
    """
    alike: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for parameter in parameters(model, width):
        name = parameter.fqn.rpartition(".")[2]
        alike.setdefault((name, parameter.shape), []).append(parameter.fqn)
    # In each group the first name is the source and the others can become targets, so
    # that no draw chains two ties.
    groups = [names for names in alike.values() if len(names) > 1]
    chosen: list[Tie] = []
    while groups and len(chosen) < MAX_TIES:
        if len(chosen) >= at_least and not chance(draw, 30 if chosen else 20):
            break
        group = pick(draw, groups)
        if not any(tie.source == group[0] for tie in chosen) and len(group) > 2:
            del group[: between(draw, 0, len(group) - 2)]
        target = group.pop(between(draw, 1, len(group) - 1))
        chosen.append(Tie(source=group[0], target=target))
        groups = [names for names in groups if len(names) > 1]
    return tuple(chosen)


@st.composite
def freeze_masks(
    draw: Draw,
    model: Node,
    width: int,
    *,
    ties: Sequence[Tie] = (),
    owners: Mapping[str, str | None] | None = None,
    everything: bool = False,
    whole_units: bool = False,
) -> tuple[str, ...]:
    """FQNs of the frozen parameters: none, whole units, every other one, any, all but adapters.

    ``owners`` maps parameters to their units; without it each module counts as one. Some
    used parameter stays trainable unless ``everything`` allows, rarely, all to be frozen.
    ``whole_units`` freezes whole units or nothing, as fsdp1's flat parameters want it.
    Targets of ties follow their source and are never listed.

    Shrinks towards no frozen parameter, then towards few of them.
    """
    kinds = ("none", "units") if whole_units else _MASKS
    kind = pick(draw, kinds)
    if kind == "none":
        return ()
    found = places(model, width)
    targets = {tie.target for tie in ties}
    free = [p for place in found for p in place.parameters if p.fqn not in targets]
    adapters = adapter_names(found)
    if kind == "units" or (kind == "adapters" and not adapters):
        frozen_at = _by_unit(draw, free, owners or _module_of(found))
    elif kind == "random":
        frozen_at = mask(draw, len(free))
    elif kind == "adapters":
        frozen_at = [parameter.fqn not in adapters for parameter in free]
    else:
        first = between(draw, 0, 1)
        frozen_at = [i % 2 == 1 - first for i in range(len(free))]
    frozen = [p for p, is_frozen in zip(free, frozen_at, strict=True) if is_frozen]
    if everything and chance(draw, 6):
        return tuple(parameter.fqn for parameter in free)
    unused = {p.fqn for place in found for p in place.parameters if not p.used}
    sources = {tie.source for tie in ties if tie.target not in unused}
    used = [p.fqn for p in free if p.used or p.fqn in sources]
    return _kept_alive([p.fqn for p in frozen], used)


def _module_of(found: Sequence[Place]) -> dict[str, str | None]:
    return {p.fqn: place.path for place in found for p in place.parameters}


def _by_unit(draw: Draw, free: Sequence[Parameter], owners: Mapping[str, str | None]) -> list[bool]:
    units = list(dict.fromkeys(owners[parameter.fqn] for parameter in free))
    held = dict(zip(units, mask(draw, len(units)), strict=True))
    return [held[owners[parameter.fqn]] for parameter in free]


def _kept_alive(frozen: Sequence[str], used: Sequence[str]) -> tuple[str, ...]:
    """The frozen ones, less the last used parameter if they were all that is used."""
    spared = used[-1] if used and set(frozen).issuperset(used) else None
    return tuple(name for name in frozen if name != spared)

"""Which parameters are frozen, and which the optimizer does not hold."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fsdpfuzz.case import TOKENS, Dense, adapter_names, kept_whole, surely_trains
from fsdpfuzz.strategies.drawing import Drawing

# "none" twice: what is frozen hides errors in gradients, so a third of the draws goes without.
_MASKS = ("none", "none", "units", "random", "alternate", "adapters")


def draw(d: Drawing) -> None:
    """None, whole units, every other parameter, any, all but adapters.

    What is flattened into one parameter is frozen as a whole, but for a few draws: FSDP refuses
    them. Some used parameter stays trainable unless the inputs require grad; then, rarely, all
    are frozen. Targets of ties follow their source.

    What stays whole until backward frees it is seldom frozen: it is known to stay so then.

    Shrinks towards no frozen parameter, then towards few of them.
    """
    if d.parting != "never":
        d.put(frozen=other_paths(d) if d.chance(50) else ())
        _train_in_each_forward(d)
        return
    flat = [unit for unit in d.a.options.values() if unit.flat]
    # Drawn in any case: what is plainer must not cost Hypothesis a choice more.
    whole = not d.chance(3) and bool(flat)
    kinds: tuple[str, ...] = ("none", "units", "units") if whole else _MASKS
    if not whole and adapter_names(d.a):
        kinds += ("adapters", "adapters")  # What adapters are for.
    if d.focus == "fine_tune":
        kinds = tuple(kind for kind in kinds if kind != "none")
    own = d.a.imported.own_frozen if d.a.imported is not None else ()
    if own and not whole:
        kinds += ("own",) * len(kinds)
    kind, everything = d.pick(kinds), d.chance(6)
    free = [p.fqn for p in d.a.distinct]
    flags, stays = d.mask(len(free)), d.chance(40)
    if everything and d.case.inputs.needs_grad():
        d.put(frozen=tuple(free))
        return
    held = _held(d, kind, dict(zip(free, flags, strict=True)), stays)
    if d.a.imported is not None and kind != "own":
        held.difference_update(d.a.imported.before_reentrant)
    unused = {p.fqn for p in d.a.parameters if not p.used}
    sources = {source for target, source in d.a.source.items() if target not in unused}
    later = set(other_paths(d))
    used = [n for n in free if (n not in unused or n in sources) and n not in later]
    if used and held.issuperset(used):
        owner = d.a.owners[used[-1]]
        spared = [n for n in used if kind == "units" and d.a.owners[n] == owner] or used[-1:]
        held -= set(spared)
    d.put(frozen=tuple(name for name in free if name in held))
    _train_in_each_forward(d)


def _train_in_each_forward(d: Drawing) -> None:
    """Inputs that require grad, or no frozen embedding, where a forward might train nothing.

    It leaves out some layers, in which all may lie that is trained.
    """
    if not d.a.numbered or surely_trains(d.a, d.a.frozen):
        return
    data = d.case.inputs
    if isinstance(data, Dense):
        d.put(inputs=msgspec.structs.replace(data, requires_grad=True))
        return
    starts = [p.fqn for place in d.a.places if place.width_in == TOKENS for p in place.parameters]
    owners = {d.a.owners[name] for name in d.a.canonical_names(starts)}
    d.put(frozen=tuple(name for name in d.case.frozen if d.a.owners[name] not in owners))


def _held(d: Drawing, kind: str, flags: Mapping[str, bool], stays: bool) -> set[str]:
    """The names of ``flags`` that are frozen; ``stays`` lets them lie in what stays whole."""
    free, adapters = list(flags), adapter_names(d.a)
    if kind == "none":
        return set()
    if kind == "own" and d.a.imported is not None:
        return {d.a.canonical(name) for name in d.a.imported.own_frozen}
    if kind == "random":
        return {name for name, held in flags.items() if held}
    if kind == "adapters" and adapters:
        return set(free) - adapters
    if kind == "alternate":
        first = not next(iter(flags.values()), False)
        return {name for i, name in enumerate(free) if i % 2 == first}
    units = dict.fromkeys(d.a.owners[name] for name in free)
    held = dict(zip(units, flags.values(), strict=False))
    if not stays:
        held |= dict.fromkeys(kept_whole(d.a), False)
    return {name for name in free if held[d.a.owners[name]]}


def other_paths(d: Drawing) -> tuple[str, ...]:
    """What lies in the paths of switches that are not the first."""
    switches = d.a.switches
    return tuple(
        p.fqn
        for p in d.a.distinct
        if any(
            p.fqn.startswith(f"{path}.branches.".lstrip("."))
            and not p.fqn.startswith(f"{path}.branches.0.".lstrip("."))
            for path in switches
        )
    )

"""Names of parameters in source: what wrappers put into them, and flat parameters."""

from __future__ import annotations

from collections.abc import Iterable

from fsdpfuzz.repro._wrap import CHECKPOINT, FSDP
from fsdpfuzz.spec import CaseSpec, Fsdp1Plan, Fsdp1Unit, unit_of, unit_owner

FLAT = "_flat_param"


def cleaned(case: CaseSpec, name: str = "name", *, fsdp: bool = True) -> str:
    """An expression for a parameter's name without what wrappers put into it."""
    text = name
    if fsdp and isinstance(case.plan, Fsdp1Plan):
        text += f'.replace("{FSDP}.", "")'
    if any(c.kind in ("wrapper", "offload") for c in case.checkpoints):
        text += f'.replace("{CHECKPOINT}.", "")'
    return text


def named_line(case: CaseSpec) -> str:
    """A statement that keeps the parameters by name, as they are then."""
    name = cleaned(case)
    if name == "name":
        return "named = dict(model.named_parameters())"
    return f"named = {{{name}: p for name, p in model.named_parameters()}}"


def held_in(
    case: CaseSpec, names: Iterable[str], *, whole: bool = False, shown: bool = False
) -> list[str]:
    """The names, and those of the flat parameters that hold any of them, or with ``whole`` nothing
    else. A tied parameter goes by both of its names. With ``shown`` none that FSDP's model lacks.
    """
    wanted = set(names)
    if not wanted:
        return []
    wanted |= {tie.target for tie in case.ties if tie.source in wanted}
    owned: dict[str, set[str]] = {}
    for fqn, owner in unit_owner(case).items():
        if owner is None:
            continue
        unit = unit_of(case.plan, owner)
        if isinstance(unit, Fsdp1Unit) and not unit.use_orig_params:
            owned.setdefault(owner, set()).add(fqn)
    flats = [
        f"{unit}.{FLAT}" if unit else FLAT
        for unit, inside in owned.items()
        if (inside <= wanted if whole else inside & wanted)
    ]
    hidden = set().union(*owned.values()) if shown else set[str]()
    return [*sorted(wanted - hidden), *flats]

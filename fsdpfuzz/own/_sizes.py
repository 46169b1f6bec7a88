"""Units by how large modules are, as torch and accelerate choose them."""

from __future__ import annotations

from fsdpfuzz.case import Fsdp1Plan, Fsdp1Unit, Imported, Tie, unit_paths
from fsdpfuzz.case.policies import sizes
from fsdpfuzz.case.tree import own_places


def by_policy(model: Imported, least: int) -> list[str]:
    """What ``size_based_auto_wrap_policy`` of fsdp1 makes units of, but the root."""
    root = (Fsdp1Unit(path=""),)
    plan = Fsdp1Plan(units=root, wrap="size_policy", min_num_params=least)
    return [path for path in unit_paths(plan, own_places(model, 0), _ties(model)) if path]


def one_by_one(model: Imported, least: int) -> list[str]:
    """What accelerate makes units of fsdp2 of, but the root: all that has more than so many."""
    found = sizes(own_places(model, 0), _ties(model))
    return [module.path for module in model.modules[1:] if found.get(module.path, 0) > least]


def _ties(model: Imported) -> list[Tie]:
    return [Tie(source=source, target=target) for source, target in model.ties]

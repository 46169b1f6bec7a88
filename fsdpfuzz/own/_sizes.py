"""Units by how large modules are, as torch and accelerate choose them."""

from __future__ import annotations

from math import prod

from fsdpfuzz.case import Imported, ImportedModule, join, within

# ``FORCE_LEAF_MODULES`` and ``EXCLUDE_WRAP_MODULES`` of ``size_based_auto_wrap_policy`` in
# torch/distributed/fsdp/wrap.py, and `wrapped` below is its ``_recursive_wrap``.
_LEAVES = ("MultiheadAttention",)
"""Classes into which torch's ``size_based_auto_wrap_policy`` does not look."""
_HOLDERS = ("ModuleList", "ModuleDict")
"""Classes of which it makes no unit."""


def numel(model: Imported, path: str) -> int:
    """The elements of all parameters in a module, each parameter once."""
    sizes = {
        # By the first name: ``sum(p.numel() for p in module.parameters())`` counts a shared one
        # once.
        p.tied or join(m.path, p.name): prod(p.shape)
        for m in model.modules
        if within(m.path, path)
        for p in m.parameters
    }
    return sum(sizes.values())


def by_policy(model: Imported, least: int) -> list[str]:
    """What ``size_based_auto_wrap_policy`` of fsdp1 makes units of, but the root.

    From the inside: what has so many parameters that do not lie in a unit within it.
    """
    units: list[str] = []
    inside: dict[str, list[ImportedModule]] = {}
    for module in model.modules[1:]:
        inside.setdefault(module.path.rpartition(".")[0], []).append(module)

    def wrapped(module: ImportedModule) -> int:
        size = numel(model, module.path)
        if size < least or module.cls in _LEAVES:
            return 0
        done = sum(wrapped(child) for child in inside.get(module.path, ()))
        if not module.path or size - done < least or module.cls in _HOLDERS:
            return done
        units.append(module.path)
        return size

    wrapped(model.root)
    order = [module.path for module in model.modules]
    return sorted(units, key=order.index)


def one_by_one(model: Imported, least: int) -> list[str]:
    """What accelerate makes units of fsdp2 of, but the root: all that has more than so many."""
    return [m.path for m in model.modules[1:] if numel(model, m.path) > least]

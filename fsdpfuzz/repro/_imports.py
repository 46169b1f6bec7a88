"""The import block of a script, sorted as isort sorts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from textwrap import wrap

from fsdpfuzz.repro._layout import WIDTH

_MODULES = ("faulthandler", "os", "time", "warnings")
_NAMES = {
    "Any": "typing",
    "Tensor": "torch",
    "checkpoint": "torch.utils.checkpoint",
    "nn": "torch",
    "nullcontext": "contextlib",
    "save_on_cpu": "torch.autograd.graph",
}
"""Where the names come from that quoted modules use."""


def import_block(body: Iterable[str], needed: Iterable[str]) -> list[str]:
    """Imports for the statements in ``body``: those in ``needed`` and whatever else they name."""
    text = "\n".join(body)
    found: dict[str, set[str]] = {}
    for entry in needed:
        module, _, name = entry.partition(":")
        found.setdefault(module, set()).add(name)
    for name, module in _NAMES.items():
        if re.search(rf"(?<![\w.\"]){name}\b(?!\s*=)", text):
            found.setdefault(module, set()).add(name)
    plain = [f"import {name}" for name in _MODULES if re.search(rf"(?<![\w.]){name}\.", text)]
    torch = ["import torch", "import torch.distributed as dist"]
    own = sorted(module for module in found if module.partition(".")[0] == "torch")
    standard = sorted(module for module in found if module not in own)
    lines = [*plain, *(line for m in standard for line in _from(m, found[m]))]
    return [*lines, "", *torch, *(line for m in own for line in _from(m, found[m]))]


def _from(module: str, names: set[str]) -> list[str]:
    lines = [f"from {module} import {name}" for name in sorted(names) if " as " in name]
    plain = sorted((name for name in names if " as " not in name), key=_order)
    if plain:
        head = f"from {module} import "
        wrapped = wrap(", ".join(plain), WIDTH - len(head), break_long_words=False)
        lines += [head + names.rstrip(",") for names in wrapped]
    return lines


def _order(name: str) -> tuple[int, str]:
    """Constants first, then classes, then the rest."""
    if name.isupper() and len(name) > 1:
        return 0, name
    return (1 if name[0].isupper() else 2), name

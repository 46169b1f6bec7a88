"""Code of your own in a rank: imported where the command line names it, and by no case."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from operator import attrgetter
from types import ModuleType
from typing import Any

from fsdpfuzz.errors import ContractError
from fsdpfuzz.wire import Target

_loaded: dict[str, ModuleType] = {}


def load(target: Target) -> ModuleType:
    """Imports a target; from now on cases may call its functions. Raises what its code raises."""
    # First: a module of the same name elsewhere on the path is not the one that was named.
    sys.path.insert(0, target.folder)
    module = importlib.import_module(target.module)
    _loaded[target.module] = module
    return module


@cache
def function(name: str) -> Any:
    """A function of the target that was imported, by ``MODULE.NAME`` or ``MODULE.CLASS.NAME``."""
    # Only what was loaded: the name comes from a case, which must not be able to import anything.
    for module, loaded in _loaded.items():
        if name.startswith(f"{module}."):
            return attrgetter(name.removeprefix(f"{module}."))(loaded)
    module, _, own = name.rpartition(".")
    raise ContractError(f"a case asks for {own}() of {module}, which nobody said may be run")

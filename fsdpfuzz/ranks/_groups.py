"""Process groups that outlive a case: what one case made, a later one gets again.

To make a group takes tens of milliseconds on gloo and hundreds on NCCL, and a case that shards
over a mesh makes several. A case gets each group once, so two that it asks for are two, as they
would be in a process of its own. All ranks ask for the same groups in the same order, so all of
them find what they want among those of earlier cases, or none does.
"""

from __future__ import annotations

import functools
import importlib
from collections import Counter
from collections.abc import Callable, Hashable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, distributed_c10d
from torch.distributed.distributed_c10d import get_debug_level

MOST = 48
"""With more groups than these all are destroyed after a case: on GPUs each takes memory."""
MAKERS = {
    "_new_group_with_tag": ("torch.distributed.distributed_c10d",),
    "split_group": (
        "torch.distributed.distributed_c10d",
        "torch.distributed",
        "torch.distributed.device_mesh",
    ),
}
"""Functions that make groups, and the modules that call them by that name. Older torch has only
the first."""
NAMING = "_hash_ranks_to_str"
"""The function of ``distributed_c10d`` that names a group that only its own ranks ask for."""
_PLAIN = (type(None), bool, int, str, timedelta, torch.device)


def _nobody(stage: str) -> None:
    """Is told of stages."""


class Groups:
    """The groups that were made in this process besides the one of all ranks."""

    def __init__(self) -> None:
        self._made: dict[Hashable, list[Any]] = {}
        self._lasting: dict[Hashable, list[Any]] = {}
        """Those that only their own ranks asked for, which stay."""
        self._given: Counter[Hashable] = Counter()
        """How many of each the case has got."""
        self._spoiled = False
        self._cases = 0

    def keep(self) -> None:
        """Wraps the functions that make groups, and names, for the life of this process."""
        for name, modules in MAKERS.items():
            original = getattr(distributed_c10d, name, None)
            if original is None:
                continue
            wrapped = self._keeping(name, original)
            for module in map(importlib.import_module, modules):
                # A module that imported the function by name has a reference of its own.
                if getattr(module, name, None) is original:
                    setattr(module, name, wrapped)
        if (naming := getattr(distributed_c10d, NAMING, None)) is not None:
            setattr(distributed_c10d, NAMING, self._naming(naming))

    def spoil(self) -> None:
        """A case ended early: it may have asked for more groups on one rank than on another."""
        # Groups are told apart by their order alone; ranks that disagree on it would get the wrong
        # ones.
        self._spoiled = True

    def next_case(self, tell: Callable[[str], None] = _nobody) -> bool:
        """Destroys what no later case can get; whether there was any.

        Every rank has answered the case before, so none of the groups is in use. With NCCL each
        takes a moment, so ``tell`` is given the stage before each.
        """
        # Torch names a group that only its own ranks ask for by these: one that is made after
        # another was destroyed meets what that one left in the store.
        staying = {group for made in self._lasting.values() for group in made}
        staying.add(distributed_c10d._get_default_group())
        others = [group for group in distributed_c10d._world.pg_map if group not in staying]
        # All or none: a rank cannot know by itself which of them the others have dropped.
        if self._spoiled or len(others) > MOST:
            self._made.clear()
        self._given.clear()
        self._spoiled = False
        self._cases += 1
        kept = {group for made in self._made.values() for group in made}
        dropped = [group for group in others if group not in kept]
        for number, group in enumerate(dropped, 1):
            tell(f"group {number} of {len(dropped)} dropped")
            dist.destroy_process_group(group)
        return bool(dropped)

    def _keeping(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def make(*args: Any, **kwargs: Any) -> Any:
            key = _key(name, args, kwargs)
            if key is None:
                return original(*args, **kwargs)
            # All of a group's ranks ask in the same order, so their counts are alike.
            own = bool(kwargs.get("use_local_synchronization"))
            made = (self._lasting if own else self._made).setdefault(key, [])
            if self._given[key] == len(made):
                made.append(original(*args, **kwargs))
            self._given[key] += 1
            return made[self._given[key] - 1]

        return make

    # By the ranks and by how many groups there are, which is no name of its own once some have
    # been destroyed (``_hash_ranks_to_str`` in distributed_c10d.py).
    def _naming(self, original: Callable[..., str]) -> Callable[..., str]:
        @functools.wraps(original)
        def name(*args: Any, **kwargs: Any) -> str:
            return f"{original(*args, **kwargs)}_{self._cases}"

        return name


def _key(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable | None:
    """What was asked for; None where it cannot be said."""
    # A tag is a name, which must stay with who chose it.
    if kwargs.get("pg_tag"):
        return None
    parts = [_part(value) for value in (*args, *kwargs.values())]
    if any(part is NotImplemented for part in parts):
        return None
    # With the debug level DETAIL a group checks each collective.
    return (name, get_debug_level(), tuple(kwargs), tuple(parts))


def _part(value: Any) -> Hashable:
    if isinstance(value, list | tuple):
        parts = tuple(_part(item) for item in value)
        return NotImplemented if any(part is NotImplemented for part in parts) else parts
    if isinstance(value, ProcessGroup) and value is distributed_c10d._get_default_group():
        return "default"
    return value if isinstance(value, _PLAIN) else NotImplemented

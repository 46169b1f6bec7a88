"""A module whose state dict holds what is neither a parameter nor a buffer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.modules.base import Build, Leaf, changed, takes_features, without_defaults
from fsdpfuzz.case.paths import join
from fsdpfuzz.case.recipe import Value, call

if TYPE_CHECKING:
    from fsdpfuzz.case.anatomy import Anatomy
    from fsdpfuzz.case.modules import Node

STEPS = "steps.extra_state"
"""Where the steps are that take state dicts with some in it."""
_NUMBERS = ("quarters", "calls")
KEY = "_extra_state"
"""Last part of the key under which ``nn.Module.state_dict`` has it."""


class ExtraState(Leaf, tag="extra_state", frozen=True, kw_only=True):
    """Multiplies by a number that it saves by ``get_extra_state``, as a tensor or in a dict.

    ``counts`` also counts forwards in train mode, by which one in eval mode multiplies as well;
    under activation checkpointing the recomputation counts, too.
    """

    classes: ClassVar[tuple[str, ...]] = ("steps.modules.extra_state.ExtraState",)
    as_dict: bool = False
    counts: bool = False

    def width_after(self, width: int, at: str = "$.model") -> int:
        """Keeps the width."""
        return takes_features(self, width, at)

    def module(self, width: int, build: Build) -> Value:
        """A module of ours."""
        options = without_defaults(self, as_dict="as_dict", counts="counts")
        return call("steps.modules.extra_state.ExtraState", **options)

    def changed_buffers(self) -> tuple[str, ...]:
        """The entry with the number of forwards, which is treated as a buffer is."""
        counted = f"{KEY}.calls" if self.as_dict else KEY
        return (counted,) if self.counts else ()

    def running_buffers(self) -> tuple[str, ...]:
        """The same."""
        return self.changed_buffers()

    def loses_state(self) -> bool:
        """Never: all is saved, and the same on each rank."""
        return False

    def words(self) -> list[str]:
        """``dict``, ``counts``."""
        return ["dict"] * self.as_dict + ["counts"] * self.counts

    def simpler(self) -> Iterator[Node]:
        """Constant; a tensor."""
        if self.counts:
            yield changed(self, counts=False)
        if self.as_dict:
            yield changed(self, as_dict=False)


def has_extra_state(a: Anatomy) -> bool:
    """Whether a module of the model has any."""
    return ExtraState.kind() in a.kinds


def stateful_places(a: Anatomy) -> list[str]:
    """FQNs of the modules that have any."""
    return [place.path for place in a.places if isinstance(place.node, ExtraState)]


def extra_keys(a: Anatomy) -> tuple[str, ...]:
    """The keys under which state dicts have it."""
    return tuple(join(path, KEY) for path in stateful_places(a))


def numbers_of(name: str) -> tuple[str, ...]:
    """FQNs of the attributes that are in such an entry of a state dict; none in any other."""
    path, found, number = f".{name}".rpartition(f".{KEY}")
    names = (number[1:],) if number else _NUMBERS
    return tuple(join(path[1:], name) for name in names) if found else ()

"""A buffer that takes part in the computation, and one that counts forwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from fsdpfuzz.case.modules.base import Build, Leaf, changed, takes_features, without_defaults
from fsdpfuzz.case.recipe import Value, call

if TYPE_CHECKING:
    from fsdpfuzz.case.modules import Node


class Buffered(Leaf, tag="buffered", frozen=True, kw_only=True):
    """Multiplies by a buffer of shape ``(width,)``.

    ``updates`` also counts forwards in train mode in an integer buffer; under activation
    checkpointing the recomputation counts as well, in FSDP and in the reference alike.
    """

    classes: ClassVar[tuple[str, ...]] = ("steps.modules.buffered.Buffered",)
    persistent: bool = True
    updates: bool = False

    def width_after(self, width: int, at: str = "$.model") -> int:
        """Keeps the width."""
        return takes_features(self, width, at)

    def own_buffers(self) -> tuple[str, ...]:
        """``scale``, and ``calls`` if it counts."""
        return ("scale", "calls") if self.updates else ("scale",)

    def unsaved_buffers(self) -> tuple[str, ...]:
        """All, if they are not persistent."""
        return () if self.persistent else self.own_buffers()

    def module(self, width: int, build: Build) -> Value:
        """A module of ours."""
        options = without_defaults(self, persistent="persistent", updates="updates")
        return call("steps.modules.buffered.Buffered", width, **options)

    def changed_buffers(self) -> tuple[str, ...]:
        """The number of calls."""
        return ("calls",) if self.updates else ()

    def loses_state(self) -> bool:
        """If that is not persistent."""
        return self.updates and not self.persistent

    def words(self) -> list[str]:
        """``not persistent``, ``updates``."""
        words = [] if self.persistent else ["not persistent"]
        return [*words, "updates"] if self.updates else words

    def simpler(self) -> Iterator[Node]:
        """Persistent, and constant."""
        if not self.persistent:
            yield changed(self, persistent=True)
        if self.updates:
            yield changed(self, updates=False)

"""What the jobs of a campaign tell each other, so that none does again what another one has done.

A job is a run beside others. Of a key that several jobs meet, the first one keeps the case; they
take turns in reducing, and each hears of the causes that the others have found out.
"""

from __future__ import annotations

from typing import Protocol

from fsdpfuzz.loop._causes import Cause
from fsdpfuzz.loop._portions import Portion


class Peers(Protocol):
    """The other jobs, as one of them sees them."""

    def first(self, name: str) -> bool:
        """Whether no other job has met what goes by this name; it is this job's from now on."""

    def news(self) -> list[Cause]:
        """The causes that other jobs have told of since it was asked last."""

    def turn(self, *, wait: bool) -> bool:
        """Whether this job may reduce now; with ``wait`` only once that is clear.

        False, too, if there are `news`, which come first. The turn ends with `reduced`.
        """

    def reduced(self, cause: Cause | None) -> bool:
        """Ends the turn and tells the others of the cause, if one was found.

        False, and the turn goes on, if there are `news`: the cause may be one of those.
        """

    def more(self) -> Portion | None:
        """What is left to be run of the campaign's examples and is this job's now."""


class Alone:
    """A run without others."""

    def first(self, name: str) -> bool:
        """Nobody else meets anything."""
        return True

    def news(self) -> list[Cause]:
        """There are none."""
        return []

    def turn(self, *, wait: bool) -> bool:
        """It is always this run's turn."""
        return True

    def reduced(self, cause: Cause | None) -> bool:
        """Nobody is told."""
        return True

    def more(self) -> Portion | None:
        """A run has had all its examples from the start."""
        return None

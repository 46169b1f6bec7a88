"""Hypothesis's engine, whose draws are those of the loop."""

from __future__ import annotations

from hypothesis.internal.conjecture.data import ConjectureData
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider

from fsdpfuzz.loop._hypothesis import Sequences

BACKEND = "fsdpfuzz"


class Independent(HypothesisProvider):
    """Draws each time anew, from the loop's sequences.

    For a backend other than its own, Hypothesis makes no variants of earlier draws, and does not
    begin with small ones. Registered as its documentation of alternative backends has it.
    """

    lifetime = "test_case"

    def __init__(self, conjecturedata: ConjectureData | None, /) -> None:
        super().__init__(conjecturedata)
        self._sequences: Sequences | None = None

    def draw_integer(
        self,
        min_value: int | None = None,
        max_value: int | None = None,
        *,
        weights: dict[int, float] | None = None,
        shrink_towards: int = 0,
    ) -> int:
        """An integer between two bounds, each as likely as the others."""
        if weights is None and min_value is not None and max_value is not None:
            if self._sequences is None and self._random is not None:
                self._sequences = Sequences(self._random)
            if self._sequences is not None:
                return min_value + self._sequences.below(max_value - min_value + 1)
        return super().draw_integer(
            min_value, max_value, weights=weights, shrink_towards=shrink_towards
        )


# By name: Hypothesis imports the class when a test asks for the backend.
AVAILABLE_PROVIDERS[BACKEND] = f"{__name__}.{Independent.__name__}"

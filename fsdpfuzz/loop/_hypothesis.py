"""The only file of the loop that drives Hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity, given
from hypothesis.internal.conjecture.data import ConjectureData
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider
from hypothesis.strategies import SearchStrategy

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.strategies.drawing import purpose

BACKEND = "fsdpfuzz"
_FEW = 1 << 16


class Independent(HypothesisProvider):
    """Draws as Hypothesis does, each time anew.

    For a backend other than its own, Hypothesis makes no variants of earlier draws, and does not
    begin with small ones. Those variants pay where a failure steers what is drawn next, which it
    never does here; half of them are a case that was run already. Registered as its documentation
    of alternative backends has it.

    Choices of each purpose come from a sequence of their own, so that those of one do not move
    when another makes more or fewer of them.
    """

    lifetime = "test_case"

    def __init__(self, conjecturedata: ConjectureData | None, /) -> None:
        super().__init__(conjecturedata)
        self._sequences: dict[str, Random] = {}
        self._base: int | None = None

    def draw_integer(
        self,
        min_value: int | None = None,
        max_value: int | None = None,
        *,
        weights: dict[int, float] | None = None,
        shrink_towards: int = 0,
    ) -> int:
        """An integer between two bounds that are not far apart, each as likely as the others.

        Hypothesis looks up constants and inverts a distribution for it, a fifth of the time of a
        draw; between bounds that are close to each other that one is even, too.
        """
        if weights is None and min_value is not None and max_value is not None:
            values = max_value - min_value + 1
            if values <= _FEW and self._random is not None:
                return min_value + int(self._sequence(self._random).random() * values)
        return super().draw_integer(
            min_value, max_value, weights=weights, shrink_towards=shrink_towards
        )

    def _sequence(self, random: Random) -> Random:
        name = purpose()
        if name not in self._sequences:
            if self._base is None:
                self._base = random.getrandbits(64)
            self._sequences[name] = Random(f"{self._base} {name}")
        return self._sequences[name]


# By name: Hypothesis imports the class when a test asks for the backend.
AVAILABLE_PROVIDERS[BACKEND] = f"{__name__}.{Independent.__name__}"


class StopRound(BaseException):
    """Leaves a round at once. Hypothesis takes any `Exception` for a failing example."""


class Abort(BaseException):
    """Carries an error of ours through Hypothesis, which would try to shrink it."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause
        super().__init__(str(cause))


def drive(
    strategy: SearchStrategy[CaseSpec],
    body: Callable[[CaseSpec], None],
    *,
    seed: int,
    max_examples: int,
) -> None:
    """Runs ``body`` on drawn cases until it raises `StopRound`, or there were ``max_examples``.

    Any other exception of ``body`` leaves this function. The same seed, number and strategy
    give the same cases.
    """

    @hypothesis.settings(
        max_examples=max_examples,
        # No shrinking, no reuse: a finding is reduced by the loop, from the case that shows it.
        phases=(Phase.generate,),
        # What an earlier run has left there would change what a seed gives.
        database=None,
        # Ranks have deadlines of their own; a case may rightly take seconds.
        deadline=None,
        # Draws share the cores with ranks that train, and are slow at times.
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        backend=BACKEND,
    )
    @hypothesis.seed(seed)
    @given(case=strategy)
    def drawn(case: CaseSpec) -> None:
        try:
            body(case)
        except Exception as error:
            raise Abort(error) from error

    try:
        drawn()
    except StopRound:
        pass
    except Abort as abort:
        raise abort.cause from None
    except Exception as error:
        interrupt = _interrupt_behind(error)
        if interrupt is None:
            raise
        raise interrupt from None


def _interrupt_behind(error: BaseException) -> KeyboardInterrupt | None:
    """The interrupt that an error of Hypothesis's own follows from.

    One that comes before its engine is there makes it fail in an assertion.
    """
    behind: BaseException | None = error
    while behind is not None and not isinstance(behind, KeyboardInterrupt):
        behind = behind.__context__
    return behind

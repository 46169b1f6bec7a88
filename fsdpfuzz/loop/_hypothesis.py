"""The only file of the loop that drives Hypothesis."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal
from unittest import SkipTest

import hypothesis
from hypothesis import Phase, Verbosity, given
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase
from hypothesis.errors import Flaky
from hypothesis.strategies import SearchStrategy

from fsdpfuzz.loop._profiles import Profile, hypothesis_options
from fsdpfuzz.spec import CaseSpec
from fsdpfuzz.verdict import FindingError

HYPOTHESIS_SHRINK_SECONDS = 300.0

GENERATE = (Phase.generate,)
GENERATE_AND_SHRINK = (Phase.generate, Phase.shrink)
REUSE_AND_SHRINK = (Phase.reuse, Phase.shrink)


class StopRound(BaseException):
    """Leaves a round at once. Hypothesis takes any `Exception` for a failing example."""


class Abort(BaseException):
    """Carries an error of ours through Hypothesis, which would try to shrink it."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause
        super().__init__(str(cause))


class PrefixedDatabase(ExampleDatabase):
    """Another database's entries under a property's name.

    Hypothesis derives its keys from the source of the test function, which is one and the
    same here for all properties.
    """

    def __init__(self, inner: ExampleDatabase, prefix: str) -> None:
        super().__init__()
        self._inner = inner
        self._prefix = prefix.encode() + b":"

    def save(self, key: bytes, value: bytes) -> None:
        """Adds a value."""
        self._inner.save(self._prefix + key, value)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """All values of a key."""
        return self._inner.fetch(self._prefix + key)

    def delete(self, key: bytes, value: bytes) -> None:
        """Removes a value."""
        self._inner.delete(self._prefix + key, value)


def open_database(
    choice: ExampleDatabase | Literal["directory"] | None, output: Path, property_name: str
) -> ExampleDatabase | None:
    """The example database of one property."""
    if choice is None:
        return None
    if choice == "directory":
        choice = DirectoryBasedExampleDatabase(output / "examples")
    return PrefixedDatabase(choice, property_name)


def derived_seed(*parts: object) -> int:
    """A seed of 64 bits that depends on all parts and on nothing else."""
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def drive(
    strategy: SearchStrategy[CaseSpec],
    body: Callable[[CaseSpec], None],
    *,
    profile: Profile,
    phases: tuple[Phase, ...],
    seed: int,
    max_examples: int,
    database: ExampleDatabase | None,
) -> None:
    """Runs ``body`` on drawn cases until Hypothesis has done the phases.

    A `FindingError` that ``body`` raises ends the generation and is shrunk, if shrinking is
    one of the phases; it does not leave this function. Any other exception of ``body`` does.
    The same seed, number and strategy give the same cases until ``body`` raises.
    """

    def guarded(case: CaseSpec) -> None:
        try:
            body(case)
        except FindingError:
            raise
        except Exception as error:
            raise Abort(error) from error

    options = {
        **hypothesis_options(profile),
        "max_examples": max_examples,
        "phases": phases,
        "database": database,
        "derandomize": False,
        "verbosity": Verbosity.quiet,
    }

    # In this order: a seed switches the database off, and the settings switch it on again.
    @hypothesis.settings(**options)
    @hypothesis.seed(seed)
    @given(case=strategy)
    def property_holds(case: CaseSpec) -> None:
        guarded(case)

    try:
        property_holds()
    except (StopRound, FindingError, Flaky, SkipTest):
        # SkipTest: the database had nothing to try. Flaky: a verdict fell out of the cache and
        # came out otherwise when run again; what was raised last is still a case that failed.
        pass
    except Abort as abort:
        raise abort.cause from None
    except BaseExceptionGroup as group:
        _, others = group.split((FindingError, Flaky))
        if others is not None:
            raise others from None


@contextmanager
def shrink_limits(seconds: float) -> Iterator[None]:
    """Lets Hypothesis shrink for longer than its own 300 s and 500 steps.

    The two constants are no settings. Hypothesis's documentation of them says that those
    who need to may replace them; a version without them keeps its own limits.
    """
    engine = importlib.import_module("hypothesis.internal.conjecture.engine")
    wanted = {"MAX_SHRINKING_SECONDS": int(seconds) + 1, "MAX_SHRINKS": 100_000}
    old = {name: getattr(engine, name) for name in wanted if hasattr(engine, name)}
    if seconds <= HYPOTHESIS_SHRINK_SECONDS:
        old = {}
    try:
        for name in old:
            setattr(engine, name, wanted[name])
        yield
    finally:
        for name, value in old.items():
            setattr(engine, name, value)

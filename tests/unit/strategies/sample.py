"""What the strategies draw, drawn once and shared by all tests, also those in other processes.

The same draws come out of the same sources, so they are kept in pytest's cache for as long as
nothing changes of what decides on them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from sys import intern
from typing import Any

import hypothesis
import msgspec
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.statistics import collector

from fsdpfuzz.case import NEWER, CaseSpec, anatomy, case_features, features
from fsdpfuzz.loop._derived import derived_seed
from fsdpfuzz.loop._hypothesis import drive
from fsdpfuzz.strategies import FOCUSES, cases
from fsdpfuzz.strategies.drawing import Focus
from tests.meta.imports import REPOSITORY, sources

SIZE = 1000
IN_A_TEST = 250
WORLD_SIZES = (2, 3, 4)
KEPT = REPOSITORY / ".pytest_cache" / "samples"
DECIDES = ("fsdpfuzz.case", "fsdpfuzz.strategies", "fsdpfuzz.errors", "fsdpfuzz.loop._hypothesis")
"""What is drawn hangs on these alone: `tests/meta/test_layers.py` says what strategies import."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Draws of one strategy, and with what status Hypothesis ended its attempts, if it did any."""

    cases: tuple[CaseSpec, ...]
    statuses: Mapping[str, int] = field(default_factory=Counter)
    told: tuple[Mapping[str, str], ...] = ()
    """The features of each case, where they are shared as well."""


def drawn(strategy: st.SearchStrategy[CaseSpec], count: int, start: int = 1) -> Sample:
    """``count`` draws as the loop makes them; the same ones for the same ``start``."""
    found: list[CaseSpec] = []
    drive(strategy, found.append, seed=start, max_examples=count)
    return Sample(tuple(found))


def by_hypothesis(
    strategy: st.SearchStrategy[CaseSpec], count: int, start: int = 1, *, backend: str
) -> Sample:
    """``count`` draws by Hypothesis's engine."""
    found: list[CaseSpec] = []
    statuses: Counter[str] = Counter()

    @seed(start)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        backend=backend,
    )
    @given(strategy)
    def collect(case: CaseSpec) -> None:
        found.append(case)

    def count_statuses(stats: dict[str, Any]) -> None:
        statuses.update(one["status"] for one in stats["generate-phase"]["test-cases"])

    # Hypothesis declares the variable by its default, None.
    with collector.with_value(count_statuses):  # type: ignore[arg-type]
        collect()
    return Sample(tuple(found), statuses)


@cache
def version() -> str:
    """A name for all that decides on what is drawn."""
    known = hashlib.sha256(f"{hypothesis.__version__} {msgspec.__version__} {sys.version}".encode())
    files = [path for name, path in sources().items() if name.startswith(DECIDES)]
    for path in (*sorted(files), Path(__file__)):
        known.update(path.read_bytes())
    return known.hexdigest()[:16]


def shared(name: str, draw: Callable[[], Sample], folder: Path = KEPT) -> Sample:
    """What ``draw`` gives, which one process alone has to wait for."""
    own = folder / version()
    own.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old != own:
            shutil.rmtree(old, ignore_errors=True)
    kept = own / f"{name}.json"
    with kept.with_suffix(".lock").open("w") as lock:
        # Whoever comes second finds it written, as a whole: the first may be ended on the way.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if kept.exists():
            return _remembered(msgspec.json.decode(kept.read_bytes(), type=Sample))
        made = draw()
        made = replace(made, told=tuple(map(features, made.cases)))
        under_way = kept.with_suffix(".part")
        under_way.write_bytes(msgspec.json.encode(made))
        under_way.replace(kept)
        return _remembered(made)


_told: dict[CaseSpec, Mapping[str, str]] = {}


def _remembered(found: Sample) -> Sample:
    for case, values in zip(found.cases, found.told, strict=True):
        # Few texts stand in all of them.
        _told[case] = {intern(name): intern(value) for name, value in values.items()}
    return replace(found, told=(), statuses=Counter(found.statuses))


def features_of(case: CaseSpec) -> Mapping[str, str]:
    """The features of a case, which take longer than drawing it."""
    found = _told.get(case)
    return case_features(anatomy(case)) if found is None else found


@cache
def sample(focus: Focus, start: int = 1) -> Sample:
    """`SIZE` draws of a focus over both APIs and world sizes 2 to 4, on the newest torch.

    Each focus from a seed of its own, as in a run: from one seed all of them draw much alike.
    """
    strategy = cases(focus=focus, world_sizes=WORLD_SIZES, offers=tuple(NEWER))
    own = derived_seed(start, focus, 0)
    return shared(f"{focus}-{start}", lambda: drawn(strategy, SIZE, own))


@cache
def in_a_test(focus: Focus) -> Sample:
    """`IN_A_TEST` draws of a focus as a test of one's own has them: some vary earlier ones."""
    strategy = cases(focus=focus, world_sizes=WORLD_SIZES, offers=tuple(NEWER))
    return shared(f"{focus}-test", lambda: by_hypothesis(strategy, IN_A_TEST, backend="hypothesis"))


@cache
def large(focus: Focus) -> tuple[CaseSpec, ...]:
    """Twice as many draws of a focus."""
    return (*sample(focus).cases, *sample(focus, 2).cases)


@cache
def everything() -> tuple[CaseSpec, ...]:
    """The different cases among the large samples of all focuses."""
    # Every other of pytest's workers begins with the last: else one of two waits for each sample.
    second = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 2
    for focus in reversed(FOCUSES) if second else FOCUSES:
        large(focus)
    return tuple(dict.fromkeys(case for focus in FOCUSES for case in large(focus)))

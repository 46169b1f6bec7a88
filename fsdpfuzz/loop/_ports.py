"""The parts that a session joins, as it sees them: pools of ranks, the judge, the archive."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.observations import Observation
from fsdpfuzz.verdict import Finding, Verdict
from fsdpfuzz.wire import Target


class PoolLike(Protocol):
    """Ranks that run one case at a time."""

    @property
    def restarts(self) -> int:
        """How often the ranks were started again."""

    def begin(self, case: CaseSpec) -> None:
        """Hands a case to the ranks, which is the next that `run` is asked for."""

    def run(self, case: CaseSpec, *, patience: bool = False) -> Observation:
        """What the ranks saw; with ``patience`` under the ceiling deadline."""

    def close(self) -> None:
        """Ends the ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A finding in a case, as the archive keeps it."""

    case: CaseSpec
    finding: Finding
    property_name: str
    backend: str
    torch: str
    seed: int
    shrink_steps: int = 0
    rate: str = ""
    known: str | None = None
    """The known defect that explains the finding."""
    unconfirmed: bool = False
    """Whether it showed once only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessError:
    """What is the fuzzer's or the machine's fault, and where everything about it is kept."""

    reason: str
    """In one line."""
    digest: str
    """Of the case that was under way."""
    path: Path
    gone: bool | None
    """Whether fresh ranks did better; None where no rank had a part in it."""

    def __str__(self) -> str:
        return f"harness error, {outcome_of(self.gone)}: {self.reason}; kept: {self.path}"


def outcome_of(gone: bool | None) -> str:
    """`HarnessError.gone` in words."""
    if gone is None:
        return "in the controller"
    return "gone on fresh ranks" if gone else "the same on fresh ranks"


class Archive(Protocol):
    """Where cases are kept."""

    def begin(self, case: CaseSpec) -> None:
        """Puts the case on disk before it runs."""

    def finish(self) -> None:
        """The case of `begin` was judged."""

    def keep(self, sighting: Sighting) -> Path:
        """Keeps a failing case for good; the file, one for each finding."""

    def keep_harness_error(self, case: CaseSpec, reason: str, words: str) -> Path:
        """Keeps the case of a harness error, and beside it ``words``, which tell all about it."""

    def drop(self, path: Path) -> None:
        """Removes a kept case that another one stands for."""

    def pending(self) -> list[CaseSpec]:
        """The cases that killed runs were at."""


class KnownLike(Protocol):
    """The defects that are understood already, by id."""

    def match(self, case: CaseSpec, finding: Finding, *, torch: str, backend: str) -> str | None:
        """The defect that explains the finding in this case."""

    def covering(self, case: CaseSpec, *, torch: str, backend: str) -> tuple[str, ...]:
        """The defects of which the case has what they need."""

    def showing(self, case: CaseSpec, *, torch: str, backend: str) -> tuple[str, ...]:
        """Those of them that show at an operation which the case has."""

    def exits(self, case: CaseSpec, name: str) -> Iterable[CaseSpec]:
        """Plainer cases that a defect does not cover any more."""

    def silent(self, *, torch: str, backend: str) -> tuple[str, ...]:
        """The defects that should show here and that `match` never gave."""


class Telling(Protocol):
    """Whether a case is worth a run, wherever it lies."""

    def __call__(self, case: CaseSpec, *, torch: str, backend: str) -> bool:
        """On that torch and that backend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """What a session is made of; tests put their own in."""

    make_pool: Callable[[int], PoolLike]
    judge: Callable[[CaseSpec, Observation], Verdict]
    archive: Archive
    known: KnownLike
    foresee: Callable[[CaseSpec, str], None] = lambda _case, _torch: None
    """Works out what ``judge`` needs of a case on that torch, while ranks are still at it."""
    aim: Callable[[Target | None, bool], Callable[[int], PoolLike]] | None = None
    """``make_pool`` for ranks that run code of one's own, and, if that is asked, tap modules."""
    telling: Telling | None = None
    """Which cases are run although a known defect covers them, or a refusal is foreseen."""
    first: tuple[CaseSpec, ...] = ()
    """What a run begins with, before anything is drawn."""

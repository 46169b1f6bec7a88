"""The parts that a session joins, as it sees them: pools of ranks, the judge, the archive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fsdpfuzz.observations import Observation
from fsdpfuzz.spec import CaseSpec
from fsdpfuzz.verdict import Finding, Verdict

if TYPE_CHECKING:
    pass


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


class Archive(Protocol):
    """Where cases are kept."""

    def begin(self, case: CaseSpec) -> None:
        """Puts the case on disk before it runs."""

    def finish(self) -> None:
        """The case of `begin` was judged."""

    def keep(self, sighting: Sighting) -> Path:
        """Keeps a failing case for good; the file."""

    def pending(self) -> list[CaseSpec]:
        """The cases that killed runs were at."""


class KnownMatch(Protocol):
    """An entry of the known findings."""

    @property
    def id(self) -> str:
        """The entry's name."""


class KnownLike(Protocol):
    """The findings that are understood already."""

    def match(
        self, case: CaseSpec, finding: Finding, *, torch: str, backend: str
    ) -> KnownMatch | None:
        """The entry that explains the finding in this case."""

    def silent(self, *, torch: str, backend: str) -> tuple[str, ...]:
        """The entries that should show here and that `match` never gave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """What a session is made of; tests put their own in."""

    make_pool: Callable[[int], PoolLike]
    judge: Callable[[CaseSpec, Observation], Verdict]
    archive: Archive
    known: KnownLike

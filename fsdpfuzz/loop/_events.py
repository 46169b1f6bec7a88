"""What a run tells whoever listens: progress lines, tables, JSON and reports are made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fsdpfuzz.verdict import Finding, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many generated cases came to which verdict."""

    examples: int = 0
    """Those that were run."""
    passed: int = 0
    rejected: int = 0
    vacuous: int = 0
    failed: int = 0
    """Cases with a finding, known ones included."""
    skipped: int = 0
    """Cases that were drawn but not run, since a known defect covers them, or a refusal."""

    def plus(self, status: Status) -> Counts:
        """With one more case that was run."""
        return replace(
            self,
            examples=self.examples + 1,
            passed=self.passed + (status == "passed"),
            rejected=self.rejected + (status == "rejected"),
            vacuous=self.vacuous + (status == "vacuous"),
            failed=self.failed + (status == "finding"),
        )

    @property
    def drawn(self) -> int:
        """All of them: run or skipped."""
        return self.examples + self.skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A finding that does not fail each time: ``failed`` of ``runs`` runs."""

    failed: int
    runs: int

    def __str__(self) -> str:
        return f"failed {self.failed} of {self.runs}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The standalone script of a finding, and what came of running it."""

    path: Path | None
    """None where none could be written."""
    confirmed: bool
    """Whether it showed the finding when it was run."""
    contradicts: bool = False
    """Whether it ran to its end and did not show the finding."""
    note: str
    """The line that shows the finding, or why it was not confirmed."""
    ablation: tuple[str, ...] = ()
    """Lines that say which options the finding needs; none where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A finding as it stands: first met, or shrunk.

    ``examples_to_find`` counts the generated cases up to and with the first that showed it;
    0 for one met in a case that an earlier run had left behind.
    """

    finding: Finding
    property_name: str
    case: Path
    digest: str
    examples_to_find: int
    known: str | None = None
    script: Script | None = None
    """None for a known finding, and for one that the run did not come to write one for."""
    rate: Rate | None = None
    also: tuple[str, ...] = ()
    """Further keys as which the same cause shows."""
    begins: tuple[str, ...] = ()
    """Of somebody's own model: at which module it begins, in words."""
    plan: str = ""
    """The same: how FSDP wraps it, as Python; empty where its own code does that."""
    shrink_steps: int = 0
    shrunk: bool = False
    seconds: float = 0.0
    """Seconds into the run at which it was first met."""

    @property
    def unconfirmed(self) -> bool:
        """Whether it is no known one, and its script ran to its end without showing it."""
        return self.known is None and self.script is not None and self.script.contradicts

    @property
    def repro(self) -> Path | None:
        """The file of the script."""
        return self.script.path if self.script is not None else None

    @property
    def message(self) -> str:
        """The finding's message, with its rate if it does not fail each time."""
        return f"{self.finding.message} ({self.rate})" if self.rate else self.finding.message


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """Before the first case."""

    torch: str
    backend: str
    world_sizes: tuple[int, ...]
    profile: str
    seed: int
    properties: tuple[str, ...]
    max_examples: int
    output: Path
    """The folder of this run."""
    max_seconds: float | None = None
    jobs: int = 1
    """So many runs, each with a seed of its own, go on side by side."""
    python: str = ""
    """What the ranks run on; empty for the controller's own."""
    against: str = ""
    """The torch version that each case is run on besides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseDone:
    """A generated case was judged. ``index`` counts from 1 over the whole run."""

    index: int
    property_name: str
    digest: str
    features: Mapping[str, str]
    """The value of each option, see `fsdpfuzz.case.features`. Not the case: of many jobs one
    process hears, and to work them out takes milliseconds."""
    status: Status
    seconds: float
    restarts: int
    known: tuple[str, ...] = ()
    """The known entries that explain findings in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingMet:
    """A finding was met for the first time in this run; its case is on disk."""

    found: Found


@dataclass(frozen=True, slots=True, kw_only=True)
class Also:
    """A cause shows under a further key, whether or not that was met as a finding of its own."""

    found: Found
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrinking:
    """A finding is being reduced: ``tries`` cases run so far, the smallest one ``bytes`` long."""

    key: str
    tries: int
    bytes: int
    restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripting:
    """The script of a finding is being written and run."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingDone:
    """A finding was shrunk as far as it goes, and its script was run."""

    found: Found


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One line that a person should read: a warning, or why the run ended early."""

    text: str
    harness_error: bool = False
    """Whether it tells of something that is the fuzzer's or the machine's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDone:
    """One of the runs of a campaign, after its end."""

    job: int
    """Counts from 1; its files are in ``jobs/<job>`` in the folder of the run."""
    backend: str
    seed: int
    examples: int
    seconds: float
    pool_restarts: int
    failure: str = ""
    """Why it did not come to its end, if it did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A whole run."""

    started: RunStarted
    counts: Counts
    seconds: float
    pool_restarts: int
    findings: tuple[Found, ...]
    strict: bool = False
    interrupted: int | None = None
    """The signal that ended the run early."""
    failure: str | None = None
    """Why the ranks could not go on, if they could not."""
    silent_known: tuple[str, ...] = ()
    """The known entries about this torch and backend that explained nothing."""
    unconfirmed: tuple[Found, ...] = ()
    """What showed once and never again without evidence, or that its own script denies."""
    harness_errors: int = 0
    """Cases whose runs ended in what is the fuzzer's or the machine's fault."""
    harness: tuple[str, ...] = ()
    """What each of these errors was, and where its case is kept."""
    jobs: tuple[JobDone, ...] = ()
    """The runs that this one is made of, if there were several."""

    @property
    def failing(self) -> tuple[Found, ...]:
        """The findings for which the run fails; what only another torch shows is none."""
        here = (found for found in self.findings if found.finding.change != "fixed")
        return tuple(found for found in here if self.strict or found.known is None)

    @property
    def examples_per_second(self) -> float:
        """Generated cases a second, shrinking included in the time."""
        return self.counts.examples / self.seconds if self.seconds > 0 else 0.0

    @property
    def exit_code(self) -> int:
        """0 no new finding, 1 findings, 3 no ranks, 130 or 143 when a signal ended the run."""
        if self.interrupted is not None:
            return 128 + self.interrupted
        if self.failure is not None:
            return 3
        return 1 if self.failing else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """After the last case."""

    summary: Summary


Event = (
    RunStarted
    | CaseDone
    | FindingMet
    | Also
    | Shrinking
    | Scripting
    | FindingDone
    | Notice
    | RunFinished
)

Emit = Callable[[Event], None]
"""Whoever is told of a run."""

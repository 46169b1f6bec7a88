"""What a session and a run are asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fsdpfuzz.case import Imported, Plan
from fsdpfuzz.loop._profiles import PROFILES, Profile
from fsdpfuzz.pool import Interpreter
from fsdpfuzz.wire import Backend, Target

if TYPE_CHECKING:
    from fsdpfuzz.loop._machine import Resolved

Api = Literal["fsdp1", "fsdp2"]

APIS: tuple[Api, ...] = ("fsdp1", "fsdp2")
OUTPUT = Path(".fsdpfuzz")
_SHIPPED = Path(__file__).resolve().parents[1] / "saved"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """How cases are run and judged.

    ``injection`` is ``module:function``, imported and called in every rank: how tests injection
    faults. ``reruns`` is how often a finding is run again before it is believed; one that
    does not fail each time is run ``flaky_runs`` times in all and reported with its rate.
    ``output`` holds the cases under way, which the next run takes over; ``kept`` is the folder
    of this run alone, for all that it leaves.
    """

    backend: Backend = "gloo"
    profile: Profile = field(default=PROFILES["dev"])
    output: Path = OUTPUT
    kept: Path | None = None
    """None for ``output``."""
    known: Path | None = None
    injection: str | None = None
    strict: bool = False
    torch: str = ""
    offers: tuple[str, ...] = ()
    """What of `fsdpfuzz.case.NEWER` the ranks' torch is known to have."""
    seed: int = 0
    reruns: int = 2
    flaky_runs: int = 10
    cache_size: int = 50_000
    target: Target | None = None
    """Code of your own that ranks may run; None for none."""
    python: Interpreter | None = None
    """What the ranks run on; None for the controller's own."""
    against: Interpreter | None = None
    """What each case is run on besides, to see what differs; its ``torch`` as it says itself."""

    def on(self, machine: Resolved) -> SessionSettings:
        """The same for what a machine can run."""
        return replace(self, backend=machine.backend, torch=machine.torch, offers=machine.offers)

    @property
    def folder(self) -> Path:
        """Where failing cases, scripts and reports go."""
        return self.output if self.kept is None else self.kept


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """One `fsdpfuzz run`.

    ``round_examples`` is how many cases of a property are run before the next one's turn; in
    long rounds Hypothesis mutates what it drew, and half of the mutants are the same case again.
    After ``max_seconds`` nothing more is drawn; what was found until then is still reduced.
    """

    session: SessionSettings
    properties: tuple[str, ...]
    max_examples: int
    world_sizes: tuple[int, ...] = (2,)
    apis: tuple[Api, ...] = APIS
    model: Imported | None = None
    """The model of your own that all cases train; None to draw models, too."""
    plan: Plan | None = None
    """How its own code wraps it; None to draw plans."""
    around: bool = False
    """Whether to change a thing or two of that."""
    words: tuple[str, ...] = ()
    """Its own program, in words of `fsdpfuzz.case.WRITTEN`."""
    round_examples: int = 8
    max_seconds: float | None = None
    notes: Path | None = None
    """Folder for what one run writes alone, where several have one folder; None for that one."""
    place: tuple[int, int] = (0, 1)
    """Of the runs side by side on its backend: which one it is, and how many there are. What each
    run begins with they share out."""


def default_corpus() -> Path:
    """``corpus`` of the current folder, else the one that fsdpfuzz comes with."""
    own = Path("corpus")
    return own if own.is_dir() else _SHIPPED


def default_known() -> Path | None:
    """``corpus/known`` of the current folder, else the one that fsdpfuzz comes with."""
    candidates = (Path("corpus/known"), _SHIPPED / "known")
    return next((path for path in candidates if path.is_dir()), None)

"""What a session and a run are asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fsdpfuzz.loop._profiles import PROFILES, Profile

if TYPE_CHECKING:
    from hypothesis.database import ExampleDatabase

Backend = Literal["gloo", "nccl"]
Api = Literal["fsdp1", "fsdp2"]

APIS: tuple[Api, ...] = ("fsdp1", "fsdp2")
OUTPUT = Path(".fsdpfuzz")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """How cases are run and judged.

    ``plant`` is ``module:function``, imported and called in every rank: how tests plant
    faults. ``reruns`` is how often a finding is run again before it is believed; one that
    does not fail each time is run ``flaky_runs`` times in all and reported with its rate.
    """

    backend: Backend = "gloo"
    profile: Profile = field(default=PROFILES["dev"])
    output: Path = OUTPUT
    known: Path | None = None
    plant: str | None = None
    strict: bool = False
    torch: str = ""
    seed: int = 0
    reruns: int = 2
    flaky_runs: int = 10
    cache_size: int = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """One `fsdpfuzz run`.

    ``database`` is Hypothesis's example database: any `ExampleDatabase`, ``"directory"``
    for a folder inside the output folder, or None for none. ``round_examples`` is how many
    cases are drawn before their findings are shrunk; in long rounds Hypothesis mutates what
    it drew, and half of the mutants are the same case again.
    """

    session: SessionSettings
    properties: tuple[str, ...]
    max_examples: int
    world_sizes: tuple[int, ...] = (2,)
    apis: tuple[Api, ...] = APIS
    database: ExampleDatabase | Literal["directory"] | None = "directory"
    round_examples: int = 8


def default_known() -> Path | None:
    """``corpus/known.json`` of the current folder, else the one that fsdpfuzz comes with."""
    packaged = Path(__file__).resolve().parents[1] / "saved" / "known.json"
    candidates = (Path("corpus/known.json"), packaged)
    return next((path for path in candidates if path.is_file()), None)

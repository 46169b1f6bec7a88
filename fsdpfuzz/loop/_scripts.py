"""The standalone script of a new finding: written, and run to see that it shows the finding."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from fsdpfuzz.corpus import read_entry
from fsdpfuzz.errors import FsdpFuzzError, one_line
from fsdpfuzz.loop._events import Found, Script
from fsdpfuzz.loop._session import Session
from fsdpfuzz.spec import CaseSpec
from fsdpfuzz.verdict import Verdict

if TYPE_CHECKING:
    from fsdpfuzz.repro import Ablation, Context

FOLDER = "repros"
MAX_RANKS = 4
ABLATION_SECONDS = 30.0
FLAKY_ATTEMPTS = 5
_UNDER_PLANT = "fsdpfuzz.ranks.under_plant"


def write_script(session: Session, found: Found) -> Script:
    """Writes ``repros/<case>.py`` in the output folder and runs it under torchrun.

    Before that it is found out which options the finding needs, unless it does not show each
    time. Whatever goes wrong is said in the script's note; nothing that happened to the
    finding before is lost by it.
    """
    from fsdpfuzz.repro import render

    path = session.settings.output / FOLDER / f"{found.case.stem}.py"
    try:
        case = read_entry(found.case).case
        ablation = None if found.rate else _ablation(session, case, found.finding.key)
        text = render(case, found.finding, _context(session, found, path.name, ablation))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except (FsdpFuzzError, OSError) as error:
        return Script(path=None, confirmed=False, note=one_line(str(error)))
    lines = ablation.lines if ablation is not None else ()
    confirmed, note = _confirm(session, found, path, case.world_size)
    return Script(path=path, confirmed=confirmed, note=one_line(note), ablation=lines)


def plant_launcher(plant: str | None) -> tuple[str, ...]:
    """What torchrun has to run in front of a script, so that a planted fault is under it too."""
    return ("-m", _UNDER_PLANT, plant) if plant is not None else ()


def _confirm(session: Session, found: Found, path: Path, world_size: int) -> tuple[bool, str]:
    from fsdpfuzz.repro import verify

    seen = verify(
        path,
        world_size,
        session.settings.backend,
        found.finding,
        launcher=plant_launcher(session.settings.plant),
        attempts=FLAKY_ATTEMPTS if found.rate else 1,
    )
    if seen.reproduced:
        return True, seen.reason
    return False, f"{seen.outcome}: {seen.reason}" if seen.reason else seen.outcome


def _ablation(session: Session, case: CaseSpec, key: str) -> Ablation:
    from fsdpfuzz.pool import probe_machine
    from fsdpfuzz.repro import ablate

    end = time.monotonic() + ABLATION_SECONDS

    def examine(changed: CaseSpec) -> Verdict | None:
        return session.examine(changed).verdict if time.monotonic() < end else None

    most = MAX_RANKS if session.settings.backend == "gloo" else probe_machine().gpus
    return ablate(case, key, examine, max_ranks=min(MAX_RANKS, most))


def _context(session: Session, found: Found, name: str, ablation: Ablation | None) -> Context:
    from fsdpfuzz.pool import probe_machine
    from fsdpfuzz.repro import Context, environment_of

    return Context(
        torch=session.torch,
        backend=session.settings.backend,
        environment=environment_of(probe_machine()),
        ablation=ablation,
        rate=f"{found.rate.failed} of {found.rate.runs}" if found.rate else "",
        script=name,
    )

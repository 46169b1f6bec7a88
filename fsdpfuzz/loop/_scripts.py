"""The standalone script of a new finding: written, and run to see that it shows the finding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.errors import FsdpFuzzError, one_line
from fsdpfuzz.loop._events import Found, Script
from fsdpfuzz.loop._session import Session

if TYPE_CHECKING:
    from fsdpfuzz.pool import Interpreter
    from fsdpfuzz.reduce import Ablation
    from fsdpfuzz.repro import Context, Verification

FOLDER = "repros"
FLAKY_ATTEMPTS = 5
_UNDER_INJECTION = "fsdpfuzz.ranks.under_injection"


def write_script(
    session: Session,
    found: Found,
    case: CaseSpec,
    ablation: Ablation | None,
    *,
    verify: Callable[..., Verification] | None = None,
) -> Script:
    """Writes ``repros/<case>.py`` in the folder of the run and runs it under torchrun.

    ``ablation`` says which options the finding needs, where that is known; ``verify`` stands for
    `fsdpfuzz.repro.verify`, which runs it. Whatever goes wrong is said in the script's note;
    nothing that happened to the finding before is lost by it.
    """
    from fsdpfuzz.repro import render

    path = session.settings.folder / FOLDER / f"{found.case.stem}.py"
    finding, context = found.finding.plain, _context(session, found, path.name, ablation)
    try:
        text = render(case, finding, context)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        seen = _run(session, found, path, case.world_size, verify)
        if seen.outcome == "not reproduced":
            # Longer, so only where it is needed.
            reading = render(case, finding, context, reads=True)
            if reading != text:
                path.write_text(reading, encoding="utf-8")
                seen = _run(session, found, path, case.world_size, verify)
                if not seen.reproduced:
                    path.write_text(text, encoding="utf-8")
    except (FsdpFuzzError, OSError) as error:
        return Script(path=None, confirmed=False, note=one_line(str(error)))
    # Rendering is our own code: what it raises says nothing of FSDP, and must not end the search.
    except Exception as error:
        note = session.note_harness_error(case, error, "writing the script")
        return Script(path=None, confirmed=False, note=note)
    lines = ablation.lines if ablation is not None else ()
    note = seen.reason
    if not seen.reproduced:
        note = f"{seen.outcome}: {seen.reason}" if seen.reason else seen.outcome
    return Script(
        path=path,
        confirmed=seen.reproduced,
        contradicts=seen.outcome == "not reproduced",
        note=one_line(note),
        ablation=lines,
    )


def injection_launcher(injection: str | None) -> tuple[str, ...]:
    """What torchrun has to run in front of a script, so that an injected fault is under it too."""
    return ("-m", _UNDER_INJECTION, injection) if injection is not None else ()


def _run(
    session: Session,
    found: Found,
    path: Path,
    world_size: int,
    verify: Callable[..., Verification] | None,
) -> Verification:
    from fsdpfuzz import repro

    python = _shown_by(session, found)
    return (verify or repro.verify)(
        path,
        world_size,
        session.settings.backend,
        found.finding.plain,
        launcher=injection_launcher(session.settings.injection),
        # A race needs luck; of any other finding one run that does not show it is a contradiction.
        attempts=FLAKY_ATTEMPTS if found.rate else 1,
        python=python.executable if python is not None else None,
    )


def _shown_by(session: Session, found: Found) -> Interpreter | None:
    """The Python whose torch shows the finding."""
    settings = session.settings
    # "fixed" is what the other torch alone shows.
    return settings.against if found.finding.change == "fixed" else settings.python


def _context(session: Session, found: Found, name: str, ablation: Ablation | None) -> Context:
    from fsdpfuzz.pool import probe_machine
    from fsdpfuzz.repro import Context, environment_of

    python, target = _shown_by(session, found), session.settings.target
    return Context(
        torch=probe_machine(python).torch if python is not None else session.torch,
        backend=session.settings.backend,
        environment=environment_of(probe_machine(python)),
        ablation=ablation,
        rate=f"{found.rate.failed} of {found.rate.runs}" if found.rate else "",
        script=name,
        folder=target.folder if target is not None else "",
    )

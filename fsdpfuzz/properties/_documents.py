"""How a property module runs the parametrisations of its source document."""

from __future__ import annotations

import pytest

from fsdpfuzz.loop import Session
from fsdpfuzz.seeds import Seed


def run_seed(seed: Seed, session: Session, property_name: str) -> None:
    """Runs a seed as a test: it must pass, or be skipped for what this machine lacks.

    A finding is raised as by ``Session.check``, unless it is known; a refusal, a harness
    error or a case that checks nothing fails the test too.
    """
    case = seed.on(session.settings.backend)
    if case is None:
        pytest.skip(f"{seed.name} needs {', '.join(seed.needs)}")
    session.check(case, property_name)
    verdict = session.examine(case).verdict
    if verdict.status not in ("passed", "finding"):
        pytest.fail(f"{seed.name} is {verdict.status}: {verdict.reason}")

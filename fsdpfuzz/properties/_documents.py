"""How a property module runs the parametrisations of its source document."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fsdpfuzz.loop import Session
from fsdpfuzz.seeds import Seed, fitting, lacking
from fsdpfuzz.spec import CaseSpec


def run_seed(seed: Seed, session: Session, property_name: str) -> None:
    """Runs a seed as a test: it must pass, or be skipped for what this machine lacks.

    A finding is raised as by ``Session.check``, unless it is known; a refusal or a case
    that checks nothing fails the test too.
    """
    case = seed.on(session.settings.backend)
    if case is None:
        pytest.skip(f"{seed.name} needs {', '.join(seed.needs)}")
    session.check(case, property_name)
    verdict = session.examine(case).verdict
    if verdict.status in ("rejected", "vacuous"):
        pytest.fail(f"{seed.name} is {verdict.status}: {verdict.reason}")


def check_drawn(
    case: CaseSpec, seeds: Sequence[Seed], session: Session, property_name: str
) -> None:
    """Checks what a property draws; a seed among its explicit examples in the form that runs here.

    A seed that this machine cannot run is left to `run_seed`, which skips it by name: an
    explicit example that fails would keep Hypothesis from drawing anything.
    """
    backend = session.settings.backend
    if lacking(case, seeds, backend):
        return
    session.check(fitting(case, seeds, backend), property_name)

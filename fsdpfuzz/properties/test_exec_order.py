"""Ranks that take another path are told so, and only they."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from fsdpfuzz.loop import Session, drawn
from fsdpfuzz.properties._documents import check_drawn, run_seed
from fsdpfuzz.seeds import EXEC_ORDER, Seed, with_seeds
from fsdpfuzz.spec import CaseSpec


@pytest.mark.parametrize("seed", EXEC_ORDER, ids=lambda seed: seed.name)
def test_documents(seed: Seed, fsdpfuzz_session: Session) -> None:
    """Each parametrisation of document 003 passes."""
    run_seed(seed, fsdpfuzz_session, "exec_order")


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@with_seeds(EXEC_ORDER)
@given(case=drawn("exec_order"))
def test_exec_order(case: CaseSpec, fsdpfuzz_session: Session) -> None:
    """Every drawn case passes, is refused clearly, or is a finding."""
    check_drawn(case, EXEC_ORDER, fsdpfuzz_session, "exec_order")

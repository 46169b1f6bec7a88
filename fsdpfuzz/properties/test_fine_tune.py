"""Frozen parameters stay as they are, and their units reshard like all others."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from fsdpfuzz.loop import Session, drawn
from fsdpfuzz.properties._documents import check_drawn, run_seed
from fsdpfuzz.seeds import FINE_TUNE, Seed, with_seeds
from fsdpfuzz.spec import CaseSpec


@pytest.mark.parametrize("seed", FINE_TUNE, ids=lambda seed: seed.name)
def test_documents(seed: Seed, fsdpfuzz_session: Session) -> None:
    """Each parametrisation of document 002 passes."""
    run_seed(seed, fsdpfuzz_session, "fine_tune")


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@with_seeds(FINE_TUNE)
@given(case=drawn("fine_tune"))
def test_fine_tune(case: CaseSpec, fsdpfuzz_session: Session) -> None:
    """Every drawn case passes, is refused clearly, or is a finding."""
    check_drawn(case, FINE_TUNE, fsdpfuzz_session, "fine_tune")

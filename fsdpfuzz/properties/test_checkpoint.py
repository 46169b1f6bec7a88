"""Activations that are recomputed or offloaded change nothing but memory."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from fsdpfuzz.loop import Session, drawn
from fsdpfuzz.properties._documents import check_drawn, run_seed
from fsdpfuzz.seeds import CHECKPOINT, Seed, with_seeds
from fsdpfuzz.spec import CaseSpec


@pytest.mark.parametrize("seed", CHECKPOINT, ids=lambda seed: seed.name)
def test_documents(seed: Seed, fsdpfuzz_session: Session) -> None:
    """Each parametrisation of document 000 passes."""
    run_seed(seed, fsdpfuzz_session, "checkpoint")


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@with_seeds(CHECKPOINT)
@given(case=drawn("checkpoint"))
def test_checkpoint(case: CaseSpec, fsdpfuzz_session: Session) -> None:
    """Every drawn case passes, is refused clearly, or is a finding."""
    check_drawn(case, CHECKPOINT, fsdpfuzz_session, "checkpoint")

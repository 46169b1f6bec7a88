"""Each rank holds its shards and no more, and ``FSDPMemTracker`` counts what the device does."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from fsdpfuzz.loop import Session, drawn
from fsdpfuzz.properties._documents import check_drawn, run_seed
from fsdpfuzz.seeds import MEMORY, Seed, with_seeds
from fsdpfuzz.spec import CaseSpec


@pytest.mark.parametrize("seed", MEMORY, ids=lambda seed: seed.name)
def test_documents(seed: Seed, fsdpfuzz_session: Session) -> None:
    """Each parametrisation of document 004 passes; without a GPU at a small size."""
    run_seed(seed, fsdpfuzz_session, "memory")


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@with_seeds(MEMORY)
@given(case=drawn("memory"))
def test_memory(case: CaseSpec, fsdpfuzz_session: Session) -> None:
    """Every drawn case passes, is refused clearly, or is a finding."""
    check_drawn(case, MEMORY, fsdpfuzz_session, "memory")

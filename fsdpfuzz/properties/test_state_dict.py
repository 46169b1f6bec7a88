"""A state dict has the plain model's keys and values, and loading it restores the model."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from fsdpfuzz.loop import Session, drawn
from fsdpfuzz.properties._documents import check_drawn, run_seed
from fsdpfuzz.seeds import STATE_DICT, Seed, with_seeds
from fsdpfuzz.spec import CaseSpec


@pytest.mark.parametrize("seed", STATE_DICT, ids=lambda seed: seed.name)
def test_documents(seed: Seed, fsdpfuzz_session: Session) -> None:
    """Each parametrisation of document 001 passes."""
    run_seed(seed, fsdpfuzz_session, "state_dict")


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@with_seeds(STATE_DICT)
@given(case=drawn("state_dict"))
def test_state_dict(case: CaseSpec, fsdpfuzz_session: Session) -> None:
    """Every drawn case passes, is refused clearly, or is a finding."""
    check_drawn(case, STATE_DICT, fsdpfuzz_session, "state_dict")

"""A state dict has the plain model's keys and values, and loading it restores the model."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.loop import Session
from fsdpfuzz.properties import fuzz
from fsdpfuzz.properties._documents import run_seed
from fsdpfuzz.seeds import STATE_DICT, Seed


@pytest.mark.parametrize("seed", STATE_DICT, ids=lambda seed: seed.name)
def test_documents(seed: Seed, fsdpfuzz_session: Session) -> None:
    """Each parametrisation of document 001 passes."""
    run_seed(seed, fsdpfuzz_session, "state_dict")


@fuzz("state_dict", seeds=STATE_DICT)
def test_state_dict(case: CaseSpec, fsdpfuzz_session: Session) -> None:
    """Every drawn case passes, is refused clearly, or is a finding."""
    fsdpfuzz_session.check(case, "state_dict")

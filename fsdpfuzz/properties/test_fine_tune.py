"""Frozen parameters stay as they are, and their units reshard like all others."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.loop import Session
from fsdpfuzz.properties import fuzz
from fsdpfuzz.properties._documents import run_seed
from fsdpfuzz.seeds import FINE_TUNE, Seed


@pytest.mark.parametrize("seed", FINE_TUNE, ids=lambda seed: seed.name)
def test_documents(seed: Seed, fsdpfuzz_session: Session) -> None:
    """Each parametrisation of document 002 passes."""
    run_seed(seed, fsdpfuzz_session, "fine_tune")


@fuzz("fine_tune", seeds=FINE_TUNE)
def test_fine_tune(case: CaseSpec, fsdpfuzz_session: Session) -> None:
    """Every drawn case passes, is refused clearly, or is a finding."""
    fsdpfuzz_session.check(case, "fine_tune")

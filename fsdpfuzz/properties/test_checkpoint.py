"""Activations that are recomputed or offloaded change nothing but memory."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.loop import Session
from fsdpfuzz.properties import fuzz
from fsdpfuzz.properties._documents import run_seed
from fsdpfuzz.seeds import CHECKPOINT, Seed


@pytest.mark.parametrize("seed", CHECKPOINT, ids=lambda seed: seed.name)
def test_documents(seed: Seed, fsdpfuzz_session: Session) -> None:
    """Each parametrisation of document 000 passes."""
    run_seed(seed, fsdpfuzz_session, "checkpoint")


@fuzz("checkpoint", seeds=CHECKPOINT)
def test_checkpoint(case: CaseSpec, fsdpfuzz_session: Session) -> None:
    """Every drawn case passes, is refused clearly, or is a finding."""
    fsdpfuzz_session.check(case, "checkpoint")

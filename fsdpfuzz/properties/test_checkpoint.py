"""Activations that are recomputed or offloaded change nothing but memory."""

from __future__ import annotations

import pytest

from fsdpfuzz.loop import Session
from fsdpfuzz.properties._documents import run_seed
from fsdpfuzz.seeds import CHECKPOINT, Seed


@pytest.mark.parametrize("seed", CHECKPOINT, ids=lambda seed: seed.name)
def test_documents(seed: Seed, fsdpfuzz_session: Session) -> None:
    """Each parametrisation of document 000 passes."""
    run_seed(seed, fsdpfuzz_session, "checkpoint")

"""Each rank holds its shards and no more, and ``FSDPMemTracker`` counts what the device does."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.loop import Session
from fsdpfuzz.properties import fuzz
from fsdpfuzz.properties._documents import run_seed
from fsdpfuzz.seeds import MEMORY, Seed


@pytest.mark.parametrize("seed", MEMORY, ids=lambda seed: seed.name)
def test_documents(seed: Seed, fsdpfuzz_session: Session) -> None:
    """Each parametrisation of document 004 passes; without a GPU at a small size."""
    run_seed(seed, fsdpfuzz_session, "memory")


@fuzz("memory", seeds=MEMORY)
def test_memory(case: CaseSpec, fsdpfuzz_session: Session) -> None:
    """Every drawn case passes, is refused clearly, or is a finding."""
    fsdpfuzz_session.check(case, "memory")

"""Ranks that take another path are told so, and only they."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.loop import Session
from fsdpfuzz.properties import fuzz
from fsdpfuzz.properties._documents import run_seed
from fsdpfuzz.seeds import EXEC_ORDER, Seed


@pytest.mark.parametrize("seed", EXEC_ORDER, ids=lambda seed: seed.name)
def test_documents(seed: Seed, fsdpfuzz_session: Session) -> None:
    """Each parametrisation of document 003 passes."""
    run_seed(seed, fsdpfuzz_session, "exec_order")


@fuzz("exec_order", seeds=EXEC_ORDER)
def test_exec_order(case: CaseSpec, fsdpfuzz_session: Session) -> None:
    """Every drawn case passes, is refused clearly, or is a finding."""
    fsdpfuzz_session.check(case, "exec_order")

"""FSDP trains as DDP does: losses, outputs, gradients, parameters and buffers."""

from __future__ import annotations

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.loop import Session
from fsdpfuzz.properties import fuzz


@fuzz("parity")
def test_parity(case: CaseSpec, fsdpfuzz_session: Session) -> None:
    """Every drawn case passes, is refused clearly, or is a finding."""
    fsdpfuzz_session.check(case, "parity")

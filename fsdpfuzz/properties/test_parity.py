"""FSDP trains as DDP does: losses, outputs, gradients, parameters and buffers."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from fsdpfuzz.loop import Session, drawn
from fsdpfuzz.spec import CaseSpec


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(case=drawn("parity"))
def test_parity(case: CaseSpec, fsdpfuzz_session: Session) -> None:
    """Every drawn case passes, is refused clearly, or is a finding."""
    fsdpfuzz_session.check(case, "parity")

"""Ranks that train nothing and report faults, so that a run with findings takes seconds."""

from __future__ import annotations

from fsdpfuzz.case import CaseSpec, anatomy, digest
from fsdpfuzz.observations import RankReport, Subject, UnitState
from fsdpfuzz.ranks import _worker
from fsdpfuzz.ranks._env import RankEnv


def install(_: RankEnv) -> None:
    """Two units or more give one fault, three steps or more another."""
    _worker.run_case = lie


def lie(case: CaseSpec, env: RankEnv) -> RankReport:
    units = anatomy(case).units
    steps = [op for op, request in enumerate(case.program) if request.__class__.__name__ == "Step"]
    subject = Subject(
        units=units,
        frozen_with_grad=("injected",) if len(units) >= 2 else (),
        unit_states=tuple(UnitState(op=op, unsharded=units[:1]) for op in steps[2:3]),
    )
    return RankReport(
        rank=env.rank, digest=digest(case), subjects=(subject,), reference="ddp", live=1
    )

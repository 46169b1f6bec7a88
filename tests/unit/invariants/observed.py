"""Observations made by hand, clean unless something is put into them."""

from __future__ import annotations

from typing import Any

import msgspec

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Gain,
    Linear,
    Sequential,
    Step,
    digest,
)
from fsdpfuzz.observations import Comparison, Observation, Raised, RankReport, Subject

CASE = CaseSpec(
    world_size=2,
    model=Sequential(children=(Linear(out=3), Linear(out=2))),
    inputs=Dense(width=3),
    plan=Fsdp2Plan(units=(Fsdp2Unit(path="0"), Fsdp2Unit(path=""))),
    program=(Forward(), Backward(), Step()),
)
REFUSED = msgspec.structs.replace(
    CASE, model=Sequential(children=(Linear(out=3), Gain(scalar=True), Linear(out=2)))
)
"""Asks for what FSDP documents to refuse: a parameter without dimensions."""
REFUSAL = "fully_shard doesn't support scalar parameters. Change gain to a 1D tensor."
"""How it says so."""
EPS = 1.2e-7


def comparison(**changes: Any) -> Comparison:
    """A gradient that is off by rounding."""
    values: dict[str, Any] = {
        "quantity": "grad",
        "name": "0.weight",
        "op": 1,
        "error": 1e-8,
        "baseline": 1e-8,
        "scale": 1.0,
        "floor": 1.0,
        "observed": 1.0,
        "expected": 1.0,
        "numel": 9,
        "eps": EPS,
    }
    return Comparison(**values | changes)


def raised(**changes: Any) -> Raised:
    """An error of torch in the first forward."""
    values: dict[str, Any] = {
        "type": "RuntimeError",
        "message": "size 3 does not match 'weight'",
        "stage": "case:forward[0]",
        "frame": "torch/distributed/fsdp/_flat_param.py:unshard",
        "documented": False,
    }
    return Raised(**values | changes)


def subject(**changes: Any) -> Subject:
    """What `CASE` gave on a rank, with nothing to tell of."""
    return Subject(**{"units": ("", "0")} | changes)


def observed(
    *subjects: Subject,
    errors: tuple[Raised | None, ...] = (None, None),
    case: CaseSpec = CASE,
    **changes: Any,
) -> Observation:
    """The same subjects on every rank that raised nothing."""
    reports = tuple(
        RankReport(
            rank=rank,
            digest=digest(case),
            raised=error,
            subjects=() if error else (subjects or (subject(),)),
            live=0 if error else 4,
        )
        for rank, error in enumerate(errors)
    )
    values: dict[str, Any] = {"reports": reports, "world_size": len(errors)}
    return Observation(digest=digest(case), backend="gloo", torch="2.13.0", **values | changes)


def on_one_rank(seen: Observation, changed: Subject, rank: int = 1) -> Observation:
    """The observation with another subject on one rank."""
    reports = tuple(
        msgspec.structs.replace(report, subjects=(changed,))
        if report is not None and report.rank == rank
        else report
        for report in seen.reports
    )
    return msgspec.structs.replace(seen, reports=reports)

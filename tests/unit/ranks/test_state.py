"""What a saved state dict is compared with, and what is left out of it."""

from __future__ import annotations

from typing import cast
from unittest.mock import Mock

import pytest
import torch

from fsdpfuzz.case import (
    Backward,
    Buffered,
    CaseSpec,
    Checkpoint,
    Dense,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Sequential,
    StateDict,
    anatomy,
)
from fsdpfuzz.invariants import broken
from fsdpfuzz.ranks._env import RankEnv
from fsdpfuzz.ranks._reference import Reference, Trace
from fsdpfuzz.ranks._state import StateWatch, Taken
from fsdpfuzz.ranks._train import recomputed_counters
from fsdpfuzz.steps.modules.buffered import Buffered as Module
from fsdpfuzz.wire import FlightRecorder

ENV = RankEnv(
    rank=0,
    world_size=2,
    backend="gloo",
    device=torch.device("cpu"),
    flight=cast(FlightRecorder, Mock()),
)
AT = 2


@pytest.mark.parametrize(
    ("path", "kind", "left_out"),
    [
        ("0", "wrapper", True),
        ("", "wrapper", True),
        ("1", "wrapper", False),
        ("0", "offload", False),
    ],
)
def test_a_buffer_that_recomputation_updates_is_left_out(
    path: str, kind: str, *, left_out: bool
) -> None:
    a = anatomy(
        CaseSpec(
            world_size=2,
            model=Sequential(children=(Buffered(updates=True), Linear(out=2))),
            inputs=Dense(width=3),
            plan=Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
            checkpoints=(Checkpoint(path=path, kind=kind),),  # type: ignore[arg-type]
            program=(Forward(), Backward(), StateDict(cpu_offload=True)),
        )
    )
    watch = StateWatch(a, ENV, recomputed_counters(a))
    plain = torch.nn.Sequential(Module(3, updates=True), torch.nn.Linear(3, 2))
    watch.plain(plain)
    saved = {key: value.clone() for key, value in plain.state_dict().items()}
    right = {key: value.clone() for key, value in saved.items()}
    saved["0.calls"] += 1
    saved["0.scale"] += 1
    parameters = {key: right.pop(key) for key in ("1.weight", "1.bias")}
    trace = Trace(params={AT: dict(parameters)}, states={AT: dict(right)})
    found = watch.compare(Taken(saved, ()), AT, Reference(trace, trace), str, 0.0)
    wrong = {c.name for c in found if broken(c)}
    assert wrong == ({"0.scale"} if left_out else {"0.scale", "0.calls"})

"""Computation of FSDP's model that begins late on a GPU."""

from __future__ import annotations

import pytest
import torch

from fsdpfuzz.case import (
    Backward,
    Forward,
    Plan,
    Step,
    anatomy,
    check,
    decode,
    encode,
    features,
    lower,
)
from fsdpfuzz.case.operations import Clip, ZeroGrad
from fsdpfuzz.case.recipe import Call, Do, Operation, Variable
from fsdpfuzz.reduce import simpler
from fsdpfuzz.repro import Context, render
from fsdpfuzz.steps.fsdp2.communication import halving
from fsdpfuzz.steps.lag import CYCLES, linger
from tests.unit.case.test_units import fsdp1, fsdp2, make

PROGRAM = (Forward(), Backward(), Clip(max_norm=1.0), Step(), ZeroGrad())


@pytest.mark.parametrize("plan", [fsdp1(""), fsdp2("")], ids=["fsdp1", "fsdp2"])
def test_what_computes_begins_late_for_fsdp_alone(plan: Plan) -> None:
    given = make(plan, program=PROGRAM, lag=True)
    check(given)
    assert decode(encode(given)) == given
    assert (features(given)["lag"], features(make(plan, program=PROGRAM))["lag"]) == ("on", "off")
    late: list[tuple[str, str | None]] = []
    for part in lower(anatomy(given)).main:
        if isinstance(part, Operation):
            first = part.body[0]
            if isinstance(first, Do) and isinstance(first.call, Call):
                name, arguments = first.call.function, first.call.args
                if name == "steps.lag.linger":
                    assert arguments == (Variable("device"),)
                    late.append((part.name, first.who))
    assert late == [("forward", "fsdp"), ("backward", "fsdp")]


def test_it_shrinks_to_computation_in_time() -> None:
    given = make(fsdp2(""), program=PROGRAM, lag=True)
    plainer = [n.case for n in simpler(given) if n.words == "computation that begins late"]
    assert plainer == [make(fsdp2(""), program=PROGRAM)]


def test_a_script_waits_as_the_ranks_do() -> None:
    context = Context(torch="", backend="nccl", environment=())
    text = render(make(fsdp2(""), program=PROGRAM, lag=True), None, context)
    assert text.count("torch.cuda._sleep(20000000)") == 2


def test_only_a_gpu_is_kept_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    monkeypatch.setattr(torch.cuda, "_sleep", waited.append)
    linger(torch.device("cpu"))
    assert waited == []
    linger(torch.device("cuda"))
    halved = halving(torch.device("cuda"))(torch.ones(1))
    assert waited == [CYCLES, CYCLES]
    assert halved.tolist() == halving(torch.device("cpu"))(torch.ones(1)).tolist() == [0.5]
    assert waited == [CYCLES, CYCLES]

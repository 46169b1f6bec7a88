"""Dropout on a GPU hangs on the dtype: the reference has to leave out what FSDP does."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Dropout,
    EncoderLayer,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Linear,
    Node,
    Sequential,
)
from fsdpfuzz.invariants import judge
from fsdpfuzz.loop._harness import fault_of
from fsdpfuzz.observations import Observation
from fsdpfuzz.pool import Pool
from tests.injected.hunting import UNITS


def case(layer: Node) -> CaseSpec:
    return CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=8), layer, Linear(out=8))),
        inputs=Dense(width=8, batch=3, length=5),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""), Fsdp2Unit(path="2"))),
        program=(Forward(), Backward(), Forward(), Backward()),
    )


def seen(layer: Node, injection: str | None = None) -> Observation:
    with Pool(2, "nccl", injection=injection) as pool:
        return pool.run(case(layer))


LAYERS = [Dropout(p=0.5), EncoderLayer(heads=2, hidden=8, dropout=0.5)]


@pytest.mark.gpu(2)
@pytest.mark.parametrize("layer", LAYERS, ids=lambda node: node.kind())
def test_the_trainings_without_fsdp_agree(layer: Node) -> None:
    observation = seen(layer)
    assert fault_of(observation) == ""
    assert judge(case(layer), observation).status == "passed"


@pytest.mark.gpu(2)
@pytest.mark.parametrize("layer", LAYERS, ids=lambda node: node.kind())
def test_a_wrong_gradient_behind_dropout_is_seen(layer: Node) -> None:
    """Which no comparison with other masks would show."""
    verdict = judge(case(layer), seen(layer, f"{UNITS}:second_unit_not_averaged"))
    assert "grad_parity" in {finding.invariant for finding in verdict.findings}

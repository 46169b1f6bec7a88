"""In which dtype the plain model says what is right, for ranks and for scripts."""

from __future__ import annotations

import pytest

from fsdpfuzz.case import (
    Backward,
    CaseSpec,
    Dense,
    Dropout,
    Forward,
    Fsdp2Plan,
    Fsdp2Unit,
    Gain,
    Linear,
    Node,
    Sequential,
    anatomy,
    right_in,
)
from fsdpfuzz.repro import Context, render
from fsdpfuzz.verdict import Finding

WRONG = Finding(
    invariant="grad_parity",
    symptom="mismatch",
    api="fsdp2",
    op=1,
    operation="backward",
    quantity="grad",
    name="0.weight",
    detail="other",
    ranks=(0, 1),
    world_size=2,
    observed="0.1",
    expected="0.2",
    allowed=1e-6,
)


def case(layer: Node) -> CaseSpec:
    return CaseSpec(
        world_size=2,
        model=Sequential(children=(Linear(out=3), layer)),
        inputs=Dense(width=3),
        plan=Fsdp2Plan(units=(Fsdp2Unit(path=""),)),
        program=(Forward(), Backward()),
    )


@pytest.mark.parametrize(
    ("layer", "backend", "dtype"),
    [
        (Gain(), "gloo", "float64"),
        (Gain(), "nccl", "float64"),
        (Dropout(), "gloo", "float64"),
        (Dropout(), "nccl", "float32"),
    ],
)
def test_random_numbers_of_a_gpu_hang_on_the_dtype(layer: Node, backend: str, dtype: str) -> None:
    given = case(layer)
    assert right_in(anatomy(given), backend) == dtype
    script = render(given, WRONG, Context(torch="", backend=backend, environment=()))
    assert ("torch.float64" in script) is (dtype == "float64")
    assert ("in float64 without FSDP" in script) is (dtype == "float64")

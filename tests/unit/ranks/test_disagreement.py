"""Where the plain model's trainings in float64 and in float32 contradict each other."""

from __future__ import annotations

import torch

from fsdpfuzz.case import anatomy
from fsdpfuzz.ranks._compare import Values
from fsdpfuzz.ranks._disagreement import disagreement
from fsdpfuzz.ranks._reference import NEVER, Reference, Trace
from tests.unit.loop.standins import make_case

A = anatomy(make_case((3, 4), steps=2))  # forward, backward, step, and again


def trace(*grads: Values) -> Trace:
    ones = torch.ones(2, dtype=torch.float64)
    return Trace(
        forwards=[0, 3],
        outputs=[ones, ones],
        grads=dict(zip((1, 4), grads, strict=True)),
        params={op: of(1.0) for op in (2, 5)},
        sizes={op: torch.ones((), dtype=torch.float64) for op in range(6)},
    )


def of(gradient: float) -> Values:
    return {"0.weight": torch.full((3,), gradient), "0.bias": None, "1.bias": torch.empty(0)}


def told(wide: Trace, single: Trace, left: int = NEVER) -> str:
    return disagreement(A, Reference(wide, single), left)


def test_they_agree() -> None:
    assert told(trace(of(1.0), of(2.0)), trace(of(1.0), of(2.0001))) == ""
    assert told(trace({}, {}), trace({}, {})) == ""
    assert told(trace(of(1.0), {}), trace(of(9.0), {}), left=0) == ""


def test_the_first_that_differs_is_told() -> None:
    wide, single = trace(of(1.0), of(2.0)), trace(of(0.5), of(1.0))
    text = "gradients at operation 1 (Backward) differ by 0.5,"
    assert text in told(wide, single)
    assert told(wide, single, left=1) == ""
    single.grads[1] = of(1.0)
    assert "operation 4 (Backward) differ by 1," in told(wide, single)
    single.grads[4] = of(2.0)
    single.outputs[1] = -wide.outputs[1]
    assert "outputs at operation 3 (Forward) differ by 2," in told(wide, single)
    single.outputs[1] = wide.outputs[1]
    single.params[5] = of(3.0)
    assert "parameters at operation 5 (Step)" in told(wide, single)


def test_what_one_lacks_is_zeros() -> None:
    assert "differ by 1," in told(trace(of(1.0), {}), trace({"0.weight": None}, {}))
    assert "differ by 1," in told(trace({"0.weight": None}, {}), trace(of(1.0), {}))
    assert told(trace(of(0.0), {}), trace({"0.weight": None}, {})) == ""


def test_where_nothing_is_compared_nothing_is_told() -> None:
    wide, single = trace(of(1.0), of(2.0)), trace(of(0.5), of(2.0))
    del wide.sizes[1]
    assert told(wide, single) == ""

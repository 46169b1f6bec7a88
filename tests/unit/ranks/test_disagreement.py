"""Where the plain model's trainings in float64 and in float32 contradict each other."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from fsdpfuzz.case import Linear, Sequential, anatomy
from fsdpfuzz.case.modules.attention import Attention
from fsdpfuzz.expect.rounding import steep, unlike
from fsdpfuzz.ranks import _disagreement
from fsdpfuzz.ranks._compare import Values
from fsdpfuzz.ranks._disagreement import Apart, disagreement, first_apart
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


def told(wide: Trace, single: Trace, left: int = NEVER) -> Apart | None:
    return first_apart(A, Reference(wide, single), left)


def test_they_agree() -> None:
    assert told(trace(of(1.0), of(2.0)), trace(of(1.0), of(2.0001))) is None
    assert told(trace({}, {}), trace({}, {})) is None
    assert told(trace(of(1.0), {}), trace(of(9.0), {}), left=0) is None


def test_the_first_that_differs_is_told() -> None:
    wide, single = trace(of(1.0), of(2.0)), trace(of(0.5), of(1.0))
    assert told(wide, single) == Apart("gradients", 1, 0.5, 1.0, 1.0)
    assert told(wide, single, left=1) is None
    single.grads[1] = of(1.0)
    assert told(wide, single) == Apart("gradients", 4, 1.0, 2.0, 1.0)
    single.grads[4] = of(2.0)
    single.outputs[1] = -wide.outputs[1]
    assert told(wide, single) == Apart("outputs", 3, 2.0, 1.0, 1.0)
    single.outputs[1] = wide.outputs[1]
    single.params[5] = of(3.0)
    assert told(wide, single) == Apart("parameters", 5, 2.0, 1.0, 1.0)


def test_what_is_no_mistake_may_be_steep() -> None:
    """A training that explodes: one that sums in another order is as far off as it likes."""
    wide, single = trace(of(1.0), of(2.0)), trace(of(1.0), of(2 - 2.0**-17))
    assert told(wide, single) is None
    found = first_apart(A, Reference(wide, single), NEVER, steep)
    assert found == Apart("gradients", 4, 2.0**-17, 2.0, 1.0)
    single.grads[4] = of(2 - 2.0**-18)
    assert first_apart(A, Reference(wide, single), NEVER, steep) is None


@pytest.mark.parametrize("stored_low", [(), ("0.weight",)])
def test_what_is_a_mistake_is_steep(stored_low: tuple[str, ...]) -> None:
    """Mistakes are looked for only where it is steep."""
    case = msgspec.structs.replace(A.case, stored_low=stored_low)
    powers = [2.0**k for k in range(-30, 12, 2)]
    wrong = [
        (off, largest, size)
        for off, largest, size in product(powers, repeat=3)
        if unlike(case, 1, off, largest, size)
    ]
    assert len(wrong) > 1000
    assert all(steep(case, 1, *each) for each in wrong)


@pytest.mark.parametrize(("size", "elsewhere", "mistake"), [(1, 0, 1), (1, 1, 0), (2**23, 0, 0)])
def test_what_exploded_on_any_rank_is_no_mistake(
    monkeypatch: pytest.MonkeyPatch, size: float, elsewhere: int, mistake: int
) -> None:
    """A gradient is the same on all ranks, and what it comes from need not be."""
    wide, single = trace(of(2e6), of(2.0)), trace(of(1e6), of(2.0))
    wide.sizes[1] = torch.tensor(size, dtype=torch.float64)
    monkeypatch.setattr(_disagreement, "nudged_traces", lambda *_: [single] * 3)
    monkeypatch.setattr(_disagreement, "nudged_trace", lambda *_, **__: wide)
    answers: list[bool] = []

    def anywhere(mine: bool) -> bool:
        # The third thing that is asked for is whether it exploded.
        answers.append(mine or (len(answers) == 2 and bool(elsewhere)))
        return answers[-1]

    env: Any = SimpleNamespace(backend="gloo", anywhere=anywhere)
    left, fault = disagreement(A, env, Reference(wide, single), NEVER)
    assert (bool(fault), left) == ((True, NEVER) if mistake else (False, 1))


@pytest.mark.parametrize(
    ("attends", "mine", "elsewhere", "left"),
    [(True, 3000.0, 0, 3), (True, 2000.0, 0, NEVER), (True, 2000.0, 1, 3), (False, 3e5, 0, NEVER)],
)
def test_nothing_is_told_of_attention_whose_logits_are_rounded_by_1(
    attends: bool, mine: float, elsewhere: int, left: int
) -> None:
    model = Sequential(children=(Attention(), Linear(out=1))) if attends else Linear(out=1)
    case = msgspec.structs.replace(A.case, model=model)
    wide = trace(of(1.0), of(2.0))
    wide.outputs[1] = torch.tensor([-mine, 1.0], dtype=torch.float64)
    asked: list[bool] = []

    def anywhere(large: bool) -> bool:
        # The second thing that is asked for is the second forward, where that is asked for at all.
        asked.append(large or (len(asked) == 1 and bool(elsewhere)))
        return asked[-1]

    env: Any = SimpleNamespace(backend="gloo", anywhere=anywhere)
    assert disagreement(anatomy(case), env, Reference(wide, wide), NEVER) == (left, "")


def test_what_one_lacks_is_zeros() -> None:
    lacking: Values = {"0.weight": None}
    assert told(trace(of(1.0), {}), trace(lacking, {})) == Apart("gradients", 1, 1.0, 1.0, 1.0)
    assert told(trace(lacking, {}), trace(of(1.0), {})) == Apart("gradients", 1, 1.0, 0.0, 1.0)
    assert told(trace(of(0.0), {}), trace({"0.weight": None}, {})) is None


def test_where_nothing_is_compared_nothing_is_told() -> None:
    wide, single = trace(of(1.0), of(2.0)), trace(of(0.5), of(2.0))
    del wide.sizes[1]
    assert told(wide, single) is None

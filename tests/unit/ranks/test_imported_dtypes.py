"""What is found out of the dtypes in which a model of somebody's own lies, and runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.ranks.targets import HEAD, looked, structure

pytestmark = pytest.mark.usefixtures("forgotten_targets")


def test_what_is_minimised_and_in_which_dtypes(tmp_path: Path) -> None:
    made = structure(tmp_path, HEAD + "def loss(model, batch): return model(batch).mean()")
    assert made.loss == "function"
    assert "bfloat16" in made.computes_in


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        ("(model(batch) @ torch.ones(2)).mean()", "your model cannot run in float64: RuntimeError"),
        ("(model(batch) * torch.rand_like(batch[:, :2])).mean()", "computes something else"),
    ],
)
def test_without_float64_float32_is_right(loss: str, why: str, tmp_path: Path) -> None:
    text = HEAD + f"def loss(model, batch): return {loss}"
    assert not structure(tmp_path, text).in_float64
    (note,) = looked(tmp_path, text).notes
    assert why in note
    assert "what is right is taken from float32" in note


ASKING = (
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(3, 3) for _ in range(3))
        self.register_buffer("turn", torch.polar(torch.ones(3), torch.arange(3.0)))
        self.register_buffer("scale", torch.ones(3))
    def forward(self, x):
        x = self.first(x.to(self.first.weight.dtype))
        x = self.second(x.to(self.second.weight) * (self.scale * self.turn.imag).to(x.dtype))
        return self.third(x) + torch.zeros(3, dtype=x.dtype)
def model(): return Net()
"""
)


def test_which_dtypes_are_asked_for_from_outside(tmp_path: Path) -> None:
    modules = {m.path: m for m in structure(tmp_path, ASKING).modules}
    assert {path for path, m in modules.items() if m.dtype_asked} == {"first", "second"}


@pytest.mark.parametrize(
    ("scaled", "beside"),
    [("(self.scale).to(x.dtype)", ("bfloat16", "float16")), ("self.scale", ())],
)
def test_buffers_in_float32_beside_parameters_that_are_not(
    scaled: str, beside: tuple[str, ...], tmp_path: Path
) -> None:
    made = structure(tmp_path, ASKING.replace("(self.scale * self.turn.imag).to(x.dtype)", scaled))
    assert made.computes_in == ("bfloat16", "float16")
    assert made.computes_beside == beside


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_a_model_in_another_dtype_is_checked_in_float32(dtype: str, tmp_path: Path) -> None:
    text = f"""
import torch
from torch import nn
def model():
    made = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)).to(torch.{dtype})
    made[1].float()
    return made
def batch(step, rank): return torch.randn(4, 3).to(torch.{dtype})
"""
    found = looked(tmp_path, text)
    assert not found.trouble
    (note,) = found.notes
    assert f"'0.weight' is of torch.{dtype}: your model is checked in float32" in note
    # What ranks of different roles make of it comes out of the same numbers.
    made = structure(tmp_path, text)
    assert made.in_float64
    assert "bfloat16" in made.computes_in


def test_complex_buffers_stay_complex(tmp_path: Path) -> None:
    made = structure(tmp_path, ASKING)
    assert made.complex_buffers
    assert made.in_float64
    assert all(m.repeats for m in made.modules)

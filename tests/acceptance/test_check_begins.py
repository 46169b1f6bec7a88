"""A finding of somebody's own model names the module at which it begins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acceptance.commands import ROOT
from tests.acceptance.commands import fsdpfuzz as command

PROGRAM = "import sys; from fsdpfuzz.cli import main; sys.exit(main())"
INJECTION = "benchmarks.faults.injections:fsdp2_summed_not_averaged"
FILE = """
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.again, self.last = (nn.Linear(4, 4) for _ in range(3))
    def forward(self, x):
        x = torch.tanh(self.first(x))
        for _ in range(2):
            x = torch.tanh(self.again(x))
        return self.last(x)

def model():
    return Net()

def batch(step, rank):
    return torch.randn(3, 4)

def program():
    return ["forward_backward", "step", "forward_backward", "step"]

def shard(model, mesh):
    fully_shard(model, mesh=mesh)

class Output:
    def shard(model, mesh):
        fully_shard(model, mesh=mesh)
        calls = []
        def odd(module, args, output):
            calls.append(1)
            return 1.01 * output if len(calls) % 2 == 0 else output
        model.again.register_forward_hook(odd)

class Gradient:
    def shard(model, mesh):
        fully_shard(model, mesh=mesh)
        def odd(module, args, output):
            if output.requires_grad:
                output.register_hook(lambda grad: 1.01 * grad)
        model.first.register_forward_hook(odd)
"""


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        (":Output", (), "begins at the output of 'again' (call 1), on rank 0, forward program[0]"),
        (":Gradient", (), "begins at the gradient that reaches 'first' (call 0), on rank 0"),
        ("", ("--inject", INJECTION), "is made or reduced, in the root's unit"),
    ],
)
def test_where_it_begins(name: str, options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    arguments = ("--as-is", "--backend", "gloo", "--max-examples", "1", "--seed", "2")
    known = ("--known", ROOT / "corpus/known", "--json", "run.json")
    done = command(
        "check", f"mine.py{name}", *arguments, *known, *options, cwd=tmp_path, program=PROGRAM
    )
    assert done.returncode == 1, done.stdout + done.stderr
    result = json.loads((tmp_path / "run.json").read_text())
    lines = [line for found in result["findings"] for line in found["begins"]]
    assert any(said in line for line in lines), lines
    assert said in done.stdout
    if not name:
        assert all("outputs and gradients of all modules agree (" in line for line in lines), lines

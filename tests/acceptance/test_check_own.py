"""``fsdpfuzz check`` on models that are less usual."""

from __future__ import annotations

import json
import re
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.acceptance.commands import ROOT
from tests.acceptance.commands import fsdpfuzz as command

INJECTION = "benchmarks.faults.injections:fsdp2_summed_not_averaged"
PROGRAM = "import sys; from fsdpfuzz.cli import main; sys.exit(main())"
HEAD = """
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy, fully_shard

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 3)
    def forward(self, x):
        return self.head(self.norm(torch.tanh(self.first(x))))

def model():
    return Net()
def batch(step, rank):
    return torch.randn(3, 6)
"""
NARROW = """
class Narrow(Net):
    def forward(self, x):
        return super().forward(x @ torch.eye(6))
def model():
    return Narrow()
"""
REPLICAS = """
def over(mesh):
    return init_device_mesh("cpu", (mesh.size() // 2, 2), mesh_dim_names=("r", "s"))
class Second:
    def shard(model, mesh):
        mesh = over(mesh)
        fully_shard([model.norm, model.head], mesh=mesh)
        fully_shard(model, mesh=mesh)
class First:
    def shard(model, mesh):
        return FSDP(
            model,
            device_mesh=over(mesh),
            sharding_strategy=ShardingStrategy.HYBRID_SHARD,
            device_id=torch.device("cpu"),
        )
"""
IGNORING = """
class Second:
    def shard(model, mesh):
        fully_shard(model, mesh=mesh, ignored_params={model.head.bias})
class First:
    def shard(model, mesh):
        return FSDP(model, ignored_states=[model.head.bias], device_id=torch.device("cpu"))
"""
FREEZING = """
class Second:
    def freeze(model):
        model.first.requires_grad_(False)
    def shard(model, mesh):
        fully_shard(model.first, mesh=mesh)
        fully_shard(model, mesh=mesh)
        model.first.requires_grad_(False)
class First:
    def shard(model, mesh):
        cpu = torch.device("cpu")
        model.first = FSDP(model.first.requires_grad_(False), device_id=cpu)
        return FSDP(model, device_id=cpu)
"""
SCALAR = """
class Scaled(Net):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))
    def forward(self, x):
        return super().forward(x) * self.scale
def model():
    return Scaled()
"""


def check(
    folder: Path, text: str, *arguments: str, part: str = "", known: bool = True
) -> CompletedProcess[str]:
    (folder / "mine.py").write_text(HEAD + text)
    registry = ("--known", ROOT / "corpus/known") if known else ()
    return command(
        *("check", f"mine.py{part}", "--backend", "gloo", "--seed", "1", *registry, *arguments),
        cwd=folder,
        program=PROGRAM,
    )


def test_without_float64_a_fault_is_found_and_its_script_shows_it(tmp_path: Path) -> None:
    options = ("--api", "fsdp2", "--max-examples")
    done = check(tmp_path, NARROW, *options, "6")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "your model cannot run in float64" in done.stderr
    done = check(tmp_path, NARROW, *options, "1", "--inject", INJECTION, "--json", "run.json")
    assert done.returncode == 1, done.stdout + done.stderr
    found = next(
        found
        for found in json.loads((tmp_path / "run.json").read_text())["findings"]
        if found["key"] == "grad_parity/mismatch/fsdp2"
    )
    assert "(confirmed)" in done.stdout
    assert "fully_shard(model, mesh=" in found["plan"]
    assert "wrapped by" in done.stdout


@pytest.mark.parametrize("part", [":Second", ":First"])
def test_what_is_ignored_is_trained_by_each_rank_alone_and_said(part: str, tmp_path: Path) -> None:
    done = check(tmp_path, IGNORING, "--as-is", "--max-examples", "3", part=part)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "head.bias is trained, but the unit around it was told to ignore it" in done.stderr
    # Its gradient is not averaged, as the plan says: no finding is made of it.
    assert re.search(r"findings, new +0", done.stdout), done.stdout
    frozen = "def freeze(model): model.head.bias.requires_grad_(False)\n"
    done = check(tmp_path, IGNORING + frozen, "--as-is", "--max-examples", "3", part=part)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (":Second", "shard(model, mesh) sets requires_grad itself, or does not run"),
        (":First", "shard(model, mesh) freezes first.weight and 1 more"),
    ],
)
def test_what_their_wrapping_freezes_is_frozen_without_fsdp(
    part: str, said: str, tmp_path: Path
) -> None:
    done = check(tmp_path, FREEZING, "--around", "--max-examples", "8", part=part)
    assert said in done.stderr
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("part", [":Second", ":First"])
def test_replicas_and_a_unit_of_several_modules_as_they_are(part: str, tmp_path: Path) -> None:
    options = ("--as-is", "--world-size", "4", "--max-examples", "4")
    done = check(tmp_path, REPLICAS, *options, part=part)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"passed +(\d)", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 0


def test_what_fsdp_refuses_however_it_is_wrapped_is_said_first(tmp_path: Path) -> None:
    done = check(tmp_path, SCALAR)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "parameter 'scale' is a scalar, which FSDP refuses" in done.stderr

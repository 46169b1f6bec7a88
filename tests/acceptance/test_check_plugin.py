"""``fsdpfuzz.check`` and ``fsdpfuzz_check``: a model of somebody's own in their tests."""

from __future__ import annotations

import os
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

from tests.acceptance.commands import MODULE, ROOT, started

OWN = ROOT / "tests/own"
SHARED = """
import fsdpfuzz
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

def model():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

def batch(step, rank):
    return torch.randn(2, 3)
"""
TESTS = (
    SHARED
    + """
@fsdpfuzz.check(max_examples=3)
def test_this_file(tmp_path):
    (tmp_path / "after").touch()

class Doubled:
    def shard(model, mesh):
        fully_shard(model, mesh=mesh)
        model[0].register_forward_hook(lambda module, args, output: 2 * output)

@fsdpfuzz.check(":Doubled", max_examples=3)
def test_a_fault():
    raise RuntimeError("what is found ends the test before its body")

@fsdpfuzz.check("late_sharding.py", depth="as_is", max_examples=3)
def test_a_mistake(): ...

def test_the_fixture(fsdpfuzz_check):
    fsdpfuzz_check("late_sharding.py:Right", depth="as_is", max_examples=3)

def test_no_such_depth(fsdpfuzz_check):
    fsdpfuzz_check("late_sharding.py", depth="deep")
"""
)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("FSDPFUZZ")}
    words = [f"--fsdpfuzz-known={ROOT / 'corpus/known'}", *arguments]
    return started(
        *(MODULE, "pytest", "-p", "no:cacheprovider", "--fsdpfuzz-backend=gloo", *words),
        cwd=folder,
        environ={**environ, "PYTHONPATH": str(ROOT)},
        seconds=280,
    )


def test_one_junit_case_a_check(tmp_path: Path) -> None:
    (tmp_path / "late_sharding.py").write_text((OWN / "late_sharding.py").read_text())
    (tmp_path / "test_mine.py").write_text(TESTS)
    done = run(tmp_path, "--junitxml=run.xml", "test_mine.py")
    assert done.returncode == 1, done.stdout + done.stderr
    cases = {case.attrib["name"]: case for case in ET.parse(tmp_path / "run.xml").iter("testcase")}
    messages = {
        name: [inner.attrib["message"] for inner in case if inner.tag == "failure"]
        for name, case in cases.items()
    }
    assert messages["test_this_file"] == messages["test_the_fixture"] == []
    assert any("output_parity/mismatch/fsdp2" in said for said in messages["test_a_fault"])
    assert "the optimizer was made before the model was sharded" in messages["test_a_mistake"][0]
    assert "depth='deep': give one of as_is, around" in messages["test_no_such_depth"][0]
    assert len(cases) == 5
    # What is found is told as a finding, with its case, and not as a traceback.
    assert "Traceback" not in done.stdout
    assert "ends the test before its body" not in done.stdout
    assert "test_mine.py:Doubled" in done.stdout
    assert list(tmp_path.glob(".fsdpfuzz/**/failures/output-parity-mismatch-fsdp2.json"))


def test_the_profile_says_how_many(tmp_path: Path) -> None:
    text = SHARED + '@fsdpfuzz.check(depth="anyhow")\ndef test_it(): ...\n'
    (tmp_path / "test_mine.py").write_text(text)
    done = run(tmp_path, "--hypothesis-profile=fsdpfuzz-smoke", "test_mine.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20 cases: " in done.stdout

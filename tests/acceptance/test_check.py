"""``fsdpfuzz check``: a model of somebody's own, on real ranks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.acceptance.commands import ROOT
from tests.acceptance.commands import fsdpfuzz as command

OWN = ROOT / "tests/own"
INJECTION = "benchmarks.faults.injections:fsdp2_summed_not_averaged"
PROGRAM = "import sys; from fsdpfuzz.cli import main; sys.exit(main())"
"""Drawing needs Hypothesis, which other commands must not import."""
GLOO = ("--backend", "gloo", "--known", str(ROOT / "corpus/known"))


def fsdpfuzz(*arguments: str | Path, cwd: Path) -> CompletedProcess[str]:
    return command(*arguments, cwd=cwd, program=PROGRAM)


def test_the_template_is_written_once_and_passes(tmp_path: Path) -> None:
    done = fsdpfuzz("check", "--init", "mymodel.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    again = fsdpfuzz("check", "--init", "mymodel.py", cwd=tmp_path)
    assert again.returncode == 2
    assert "is there already and stays as it is" in again.stderr
    done = fsdpfuzz(
        "check", "mymodel.py", *GLOO, "--max-examples", "3", "--seed", "2", cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"examples +3 *\n *passed +3", done.stdout), done.stdout


def test_a_decoder_is_trained_right(tmp_path: Path) -> None:
    done = fsdpfuzz(
        "check", OWN / "decoder.py", *GLOO, "--max-examples", "8", "--seed", "3", cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_not_contiguous_is_compared_as_it_lies(tmp_path: Path) -> None:
    arguments = ("--api", "fsdp1", "--max-examples", "12", "--seed", "3")
    done = fsdpfuzz("check", OWN / "channels_last.py", *GLOO, *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"passed +1[012]", done.stdout), done.stdout


def test_a_fault_is_found_and_shown_by_a_script_that_imports_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text((OWN / "decoder.py").read_text())
    arguments = ("--api", "fsdp2", "--max-examples", "2", "--seed", "3", "--inject", INJECTION)
    done = fsdpfuzz("check", "mine.py", *GLOO, *arguments, "--json", "run.json", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    result = json.loads((tmp_path / "run.json").read_text())
    found = next(f for f in result["findings"] if f["key"] == "grad_parity/mismatch/fsdp2")
    assert "(confirmed)" in done.stdout
    script = (tmp_path / found["repro"]).read_text()
    assert "from mine import batch as make_batch, model as make_model" in script
    assert "fully_shard(model" in script
    case = found["case"]
    alone = fsdpfuzz("replay", case, "--backend", "gloo", cwd=tmp_path)
    assert alone.returncode == 2
    assert "the code of mine.py" in alone.stderr
    named = ("--target", "mine.py")
    assert fsdpfuzz("replay", case, *named, "--backend", "gloo", cwd=tmp_path).returncode == 0
    (tmp_path / "mine.py").write_text(script.replace("import", "raise ValueError  # ", 1))
    other = fsdpfuzz("replay", case, *named, "--backend", "gloo", cwd=tmp_path)
    assert other.returncode == 2
    assert "mine.py" in other.stderr


def test_a_shard_that_parts_a_tie_is_told(tmp_path: Path) -> None:
    done = fsdpfuzz(
        "check", OWN / "split_tie.py", "--as-is", *GLOO, "--max-examples", "2", cwd=tmp_path
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "embedding.weight and head.weight are one parameter" in done.stderr
    assert "FSDP needs both in one unit" in done.stderr
    assert "known as fsdp1-tie-across-units" in done.stdout
    assert "Put the modules that share a parameter into one unit." in done.stdout


@pytest.mark.parametrize(
    ("target", "named", "key"),
    [
        (
            "late_sharding.py",
            "the optimizer was made before the model was sharded: 6 of its 6 parameters",
            "param_parity/mismatch/fsdp2",
        ),
        (
            "quiet_adapter.py",
            "'1' is recomputed by reentrant checkpointing, but no input of it requires grad",
            "grad_parity/mismatch/fsdp2",
        ),
        (
            "plain_clipping.py",
            "clip(model) uses torch.nn.utils.clip_grad_norm_ on a model that "
            "FullyShardedDataParallel has sharded",
            "clip_norm/mismatch/fsdp1",
        ),
        (
            "first_rank_loads.py:Before",
            "shard(model, mesh) loads on rank 0 only, without broadcasting: rank 1 keeps",
            "output_parity/mismatch/fsdp1",
        ),
    ],
)
def test_a_mistake_is_named_and_shows(target: str, named: str, key: str, tmp_path: Path) -> None:
    done = fsdpfuzz(
        *("check", OWN / target, "--as-is", *GLOO, "--max-examples", "1", "--seed", "1"),
        cwd=tmp_path,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert named in done.stderr
    assert f"what is found may come from this: {named}" in done.stdout
    assert f"{key} (new" in done.stdout
    assert "(confirmed)" in done.stdout


def test_a_load_that_waits_for_ever_is_named(tmp_path: Path) -> None:
    done = fsdpfuzz("check", OWN / "first_rank_loads.py", *GLOO, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    named = "load(model, state) loads on rank 0 only, without broadcasting: rank 0 waits for ever"
    assert named in done.stderr
    assert "broadcast_from_rank0=True" in done.stderr


@pytest.mark.parametrize(
    "name", ["late_sharding", "quiet_adapter", "plain_clipping", "first_rank_loads"]
)
def test_done_right_nothing_is_found_around_it(name: str, tmp_path: Path) -> None:
    done = fsdpfuzz(
        *("check", OWN / f"{name}.py:Right", *GLOO, "--max-examples", "12", "--seed", "1"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # A few are drawn where a defect of FSDP is known, whatever is right about the model.
    assert re.search(r"findings, new +0", done.stdout), done.stdout
    assert re.search(r"passed +1[012]", done.stdout), done.stdout
    assert ":Right:" not in done.stderr


TWO = """
import torch
from torch import nn

def batch(step, rank):
    return torch.randn(2, 3)

def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=1e-2)

def program():
    return ["forward_backward", "step", "reload", "forward_backward", "clip 0.1", "step"]

class Wide:
    def model():
        return nn.Sequential(nn.Linear(3, 9), nn.Tanh(), nn.Linear(9, 2))

class Deep:
    def model():
        return nn.Sequential(*(nn.Linear(3, 3) for _ in range(3)))

    program = None
"""


def test_several_checks_in_one_file(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(TWO)
    none = fsdpfuzz("check", "two.py", *GLOO, cwd=tmp_path)
    assert none.returncode == 2
    assert "say of which class in it: two.py:Wide" in none.stderr
    other = fsdpfuzz("check", "two.py:Narrow", *GLOO, cwd=tmp_path)
    assert other.returncode == 2
    assert "two.py has no class 'Narrow': those in it: Wide, Deep" in other.stderr
    arguments = ("--api", "fsdp2", "--max-examples", "8", "--seed", "4", "--inject", INJECTION)
    done = fsdpfuzz("check", "two.py:Wide", *GLOO, *arguments, "--json", "run.json", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "(confirmed)" in done.stdout
    result = json.loads((tmp_path / "run.json").read_text())
    found = next(f for f in result["findings"] if f["key"] == "grad_parity/mismatch/fsdp2")
    script = (tmp_path / found["repro"]).read_text()
    assert "from two import Wide as own" in script
    assert "make_model = own.model" in script
    named = ("replay", found["case"], "--target", "two.py", "--backend", "gloo")
    assert fsdpfuzz(*named, cwd=tmp_path).returncode == 0
    # It meets a defect that is known of Adam, whatever `optimizer` is called.
    fewer = ("--max-examples", "4", "--seed", "594088672")
    deep = fsdpfuzz("check", "two.py:Deep", *GLOO, *fewer, cwd=tmp_path)
    assert deep.returncode == 0, deep.stdout + deep.stderr


def test_an_accelerate_configuration_says_how_it_is_wrapped(tmp_path: Path) -> None:
    (tmp_path / "fsdp.yaml").write_text(
        "fsdp_config:\n  fsdp_version: 2\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
        "  fsdp_transformer_layer_cls_to_wrap: Layer\n"
    )
    arguments = ("--config", "fsdp.yaml", "--max-examples", "2", "--seed", "3", "--as-is")
    done = fsdpfuzz(
        *(
            "check",
            OWN / "decoder.py",
            *arguments,
            *GLOO,
            "--inject",
            INJECTION,
            "--json",
            "run.json",
        ),
        cwd=tmp_path,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    result = json.loads((tmp_path / "run.json").read_text())
    case = json.loads((tmp_path / result["findings"][0]["case"]).read_text())["case"]
    assert case["plan"]["api"] == "fsdp2"
    assert {unit["path"] for unit in case["plan"]["units"]} <= {"", "layers.0", "layers.1"}
    both = fsdpfuzz(
        "check", OWN / "decoder.py", "--config", "fsdp.yaml", "--anyhow", *GLOO, cwd=tmp_path
    )
    assert both.returncode == 2
    assert "'fsdp.yaml' says how to wrap, --anyhow draws that: give one" in both.stderr


def test_a_program_of_its_own_is_what_is_trained(tmp_path: Path) -> None:
    shard = "from torch.distributed.fsdp import fully_shard\ndef shard(model, mesh):\n"
    shard += "    fully_shard(model[0], mesh=mesh)\n    fully_shard(model, mesh=mesh)\n"
    (tmp_path / "mine.py").write_text(TWO + shard)
    arguments = ("--as-is", "--max-examples", "2", "--seed", "1", "--inject", INJECTION)
    done = fsdpfuzz("check", "mine.py:Wide", *GLOO, *arguments, "--json", "run.json", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    result = json.loads((tmp_path / "run.json").read_text())
    shown = fsdpfuzz("explain", result["findings"][0]["case"], cwd=tmp_path).stdout
    assert "optimizer(parameters) of the target" in shown or "sgd" in shown
    assert "mine.py:Wide" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gone.py",), "there is no file 'gone.py'"),
        (("mine.py", "--as-is", "--anyhow"), "--as-is and --anyhow: give one of them"),
        (("mine.py:for",), "'for' is no name of a class"),
        (("mine.py",), "no function batch() in mine.py"),
        (("--init", "my-model.py"), "give the name of a Python file"),
    ],
)
def test_what_cannot_be_checked(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def model(): return 3")
    done = fsdpfuzz("check", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1

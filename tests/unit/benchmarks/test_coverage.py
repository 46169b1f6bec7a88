"""What is counted of coverage's report, and what is said of functions that nobody enters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.coverage import ELSEWHERE, REASONS, UNKNOWN, Share, group_of, reason_for, show

ROOT = Path(__file__).parents[3]
PARAM = "/x/torch/distributed/fsdp/_fully_shard/_fsdp_param.py"


def function(covered: int, of: int, branches: int = 0, missing: Any = ()) -> dict[str, Any]:
    return {
        "missing_lines": list(missing),
        "summary": {
            "covered_lines": covered,
            "num_statements": of,
            "covered_branches": branches,
            "num_branches": 2 * branches,
        },
    }


def test_statements_of_functions_count_and_those_of_modules_do_not() -> None:
    functions = {
        "": function(0, 50),
        "a": function(3, 4, 1),
        "b": function(0, 6),
        "c": function(0, 0),
    }
    found = {"title": "t", "files": {PARAM: {"functions": functions}}}
    told = show(found, Console(quiet=True), "gloo")
    assert told["groups"]["FSDP2"] == {
        "lines": 3,
        "of_lines": 10,
        "branches": 1,
        "of_branches": 2,
        "elsewhere": 0,
    }
    assert told["groups"]["FSDP1"]["of_lines"] == 0
    assert [row["function"] for row in told["never"]] == ["b"]


def test_what_a_backend_cannot_reach_is_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "distributed" / "fsdp" / "some.py"
    file.parent.mkdir(parents=True)
    file.write_text("def f():\n    if wrong:\n        raise ValueError\n    x = 1\n")
    streams = function(0, 4, missing=(7, 8, 9, 10))
    # Of the lines that were not run one raises; the other is missed.
    functions = {"f": function(2, 4, missing=(3, 4)), "f.wait_stream": streams}
    found = {"title": "t", "files": {str(file): {"functions": functions}}}
    seen = {b: show(found, Console(quiet=True), b)["groups"]["FSDP1"] for b in ("gloo", "nccl")}
    assert [group["elsewhere"] for group in seen.values()] == [5, 1]
    assert {why for reasons in ELSEWHERE.values() for why in reasons} <= set(REASONS.values())
    assert Share(**seen["gloo"]).words == ("8", "25.0 %", "66.7 %", "-")


@pytest.mark.parametrize(
    ("file", "group"),
    [
        (PARAM, "FSDP2"),
        ("/x/torch/distributed/fsdp/api.py", "FSDP1"),
        ("/x/torch/distributed/_composable/replicate.py", "composable"),
        ("/x/torch/distributed/checkpoint/state_dict.py", "state_dict.py"),
    ],
)
def test_a_file_is_of_one_api(file: str, group: str) -> None:
    assert group_of(file) == group


def test_a_function_without_a_reason_says_so() -> None:
    assert reason_for("distributed/fsdp/_fully_shard/x.py", "SymmMemAllGather.f") == "needs NVLink"
    assert reason_for("distributed/fsdp/wrap.py", "_or_policy") == UNKNOWN
    # Some of it is drawn, and what is not is no longer said to have a reason.
    made = "distributed/_composable/replicate_with_fsdp.py"
    assert reason_for(made, "_validate_mesh") == UNKNOWN
    assert reason_for(made.replace("_with_fsdp", ""), "DDP.__new__").startswith("DDP's")
    assert reason_for("distributed/fsdp/sharded_grad_scaler.py", "ShardedGradScaler.f") == UNKNOWN


def test_it_finds_the_library_beside_its_own_name() -> None:
    told = subprocess.run(
        [sys.executable, "benchmarks/coverage.py", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert "--world-sizes" in told.stdout

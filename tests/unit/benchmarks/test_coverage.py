"""What is counted of coverage's report, and what is missed of it."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.coverage import Share, count, files, group_of, report, run_import, show
from benchmarks.unreached import GPU, RAISES, UNKNOWN

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


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "distributed" / "fsdp" / "some.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "def f():\n    if wrong:\n        text = 1\n        raise ValueError\n    x = 1\n"
    )
    return file


def test_functions_are_counted_without_modules_and_with_them(source: Path) -> None:
    functions = {"": function(50, 60), "a": function(3, 4, 1), "b": function(0, 6)}
    told = count({"title": "t", "files": {str(source): {"functions": functions}}}, "gloo")
    inside = {"lines": 3, "of_lines": 10, "branches": 1, "of_branches": 2, "elsewhere": 0}
    everything = {**inside, "lines": 53, "of_lines": 70}
    assert told["groups"]["FSDP1"] == {"functions": inside, "all": everything}
    assert told["groups"]["FSDP2"]["all"]["of_lines"] == 0


def test_what_a_backend_cannot_run_is_taken_out_and_the_rest_listed(source: Path) -> None:
    # A statement that builds a message is out of reach like the error; the last one is missed.
    functions = {
        "": function(1, 1),
        "f": function(1, 4, missing=(3, 4, 5)),
        "f.sync_module": function(0, 4, missing=(7, 8, 9, 10)),
    }
    found = {"title": "t", "files": {str(source): {"functions": functions}}}
    on = {backend: count(found, backend) for backend in ("gloo", "nccl")}
    shares = {backend: told["groups"]["FSDP1"]["functions"] for backend, told in on.items()}
    assert [one["elsewhere"] for one in shares.values()] == [6, 2]
    assert Share(**shares["gloo"]).words == ("8", "50.0 %", "12.5 %")
    left = {
        backend: [(row["function"], row["why"]) for row in told["missed"]]
        for backend, told in on.items()
    }
    one = ("f", {UNKNOWN: 1})
    assert left == {"gloo": [one], "nccl": [("f.sync_module", {GPU: 4}), one]}
    assert [(row["missed"], row["statements"]) for row in on["nccl"]["missed"]] == [(4, 4), (1, 4)]


def test_what_is_missed_is_shown_with_why(source: Path) -> None:
    functions = {"f": function(1, 4, missing=(5,)), "f.deepcopy": function(0, 1, missing=(7,))}
    found = {"title": "t", "files": {str(source): {"functions": functions}}}
    console = Console(record=True, width=160, file=io.StringIO())
    show(count(found, "gloo"), console, "gloo")
    shown = console.export_text()
    assert "in 2 functions" in shown
    assert "deepcopy" in shown
    assert UNKNOWN in shown
    assert RAISES not in shown


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


def test_what_an_import_runs_counts(tmp_path: Path) -> None:
    run_import(tmp_path)
    told = count({"title": "t", **report(tmp_path)}, "gloo")["groups"]
    assert len(list(files())) > 30
    for group in ("FSDP1", "FSDP2", "state_dict.py"):
        everything, inside = Share(**told[group]["all"]), Share(**told[group]["functions"])
        modules = everything.of_lines - inside.of_lines
        assert modules > 80
        # All but those of modules that only cases import.
        assert everything.lines - inside.lines >= 0.9 * modules
        assert inside.lines < 0.1 * inside.of_lines


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

"""A script has all that it names, whatever is trained in it, and nothing twice."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from fsdpfuzz.case import CaseSpec, digest
from fsdpfuzz.loop import PROPERTIES, Scope
from fsdpfuzz.loop._hypothesis import drive
from fsdpfuzz.repro import Context, render
from tests.unit.repro.examples import CRASH, finding

DRAWN = 150
EACH = 4


@pytest.mark.parametrize("name", ["parity", "state_dict"])
def test_scripts_of_what_is_drawn(name: str, tmp_path: Path) -> None:
    mesh, others = tmp_path / "tensor_parallel", tmp_path / "others"
    mesh.mkdir()
    others.mkdir()

    def write(case: CaseSpec) -> None:
        # All with axes of a mesh, which functions of a script share; of the rest some.
        folder = others if case.tensor_parallel is None else mesh
        if folder is mesh or len(list(others.iterdir())) < 20:
            text = render(case, None, Context())
            (folder / f"{digest(case)}.py").write_text(text)

    drive(PROPERTIES[name].strategy(Scope()), write, seed=3, max_examples=DRAWN)
    assert any(mesh.iterdir())
    assert_all_named(tmp_path)


def test_scripts_of_a_crash_at_any_operation(tmp_path: Path) -> None:
    """It is cut there, before what else would have asked for the same."""
    ends = Counter[str]()

    def write(case: CaseSpec) -> None:
        for i, op in enumerate(case.program):
            if ends[op.kind()] < EACH:
                ends[op.kind()] += 1
                crash = finding(
                    "no_crash",
                    "crash",
                    case.api,
                    op=i,
                    operation=op.kind(),
                    world_size=case.world_size,
                    failure=CRASH,
                )
                name = f"{op.kind()}_{ends[op.kind()]}.py"
                (tmp_path / name).write_text(render(case, crash, Context()))

    drive(PROPERTIES["state_dict"].strategy(Scope()), write, seed=5, max_examples=2 * DRAWN)
    assert {"unscale", "optim_state", "clip", "rebuild", "transfer"} <= set(ends)
    assert_all_named(tmp_path)


def assert_all_named(folder: Path) -> None:
    # F821: undefined names, F811: redefined while unused, F401: imported and not used.
    rules = ["--isolated", "--select", "F821,F811,F401", "--output-format", "concise"]
    command = [sys.executable, "-m", "ruff", "check", *rules, "--no-cache", str(folder)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout

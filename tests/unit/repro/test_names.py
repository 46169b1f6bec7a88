"""A script has all that it names, whatever is trained in it, and nothing twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fsdpfuzz.case import CaseSpec, digest
from fsdpfuzz.loop import PROPERTIES, Scope
from fsdpfuzz.loop._hypothesis import drive
from fsdpfuzz.repro import Context, render

DRAWN = 150


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
    # F821: undefined names, F811: redefined while unused, F401: imported and not used.
    rules = ["--isolated", "--select", "F821,F811,F401", "--output-format", "concise"]
    command = [sys.executable, "-m", "ruff", "check", *rules, "--no-cache", str(tmp_path)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout

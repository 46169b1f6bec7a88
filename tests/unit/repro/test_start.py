"""A script needs no launcher: plain python starts as many ranks as the case has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fsdpfuzz.case import CaseSpec
from fsdpfuzz.repro import Context, render
from fsdpfuzz.verdict import Finding
from tests.unit.repro.examples import finding, single_unit


def started(case: CaseSpec, found: Finding | None, folder: Path) -> tuple[int, list[str]]:
    """Exit code of ``python script``, and what the ranks said."""
    script = folder / "repro.py"
    script.write_text(render(case, found, Context()))
    plain = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
    plain["CUDA_VISIBLE_DEVICES"] = ""
    seen = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=plain, check=False
    )
    # What two ranks print may come one into the other.
    return seen.returncode, re.findall(r"not reproduced|reproduced: ", seen.stdout)


@pytest.mark.parametrize("ranks", [1, 3])
def test_it_runs_on_all_its_ranks(ranks: int, tmp_path: Path) -> None:
    code, said = started(single_unit("fsdp2", world_size=ranks), None, tmp_path)
    assert said == ["not reproduced"] * ranks
    assert code == 0


def test_it_says_by_its_exit_code_what_it_saw(tmp_path: Path) -> None:
    never = finding("grad_parity", op=1, allowed=-1.0)
    code, said = started(single_unit("fsdp1"), never, tmp_path)
    assert code == 1, said
    assert "reproduced: " in said

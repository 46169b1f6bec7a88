"""``fsdpfuzz doctor`` on this machine, with real ranks."""

from __future__ import annotations

import re
from pathlib import Path

from fsdpfuzz.loop import installed_torch
from tests.acceptance.commands import PROGRAM, fsdpfuzz


def lines(stdout: str) -> dict[str, tuple[str, str]]:
    """Name to state and detail."""
    rows = [re.fullmatch(r"(ok|note|missing) +(.+?)  +(.*)", line) for line in stdout.splitlines()]
    return {row[2]: (row[1], row[3]) for row in rows if row is not None}


def test_a_machine_that_can_run(tmp_path: Path) -> None:
    done = fsdpfuzz("doctor", "--backend", "gloo", cwd=tmp_path, lent=False)
    assert done.returncode == 0, done.stderr
    told = lines(done.stdout)
    assert told["torch"] == ("ok", installed_torch())
    assert told["backend"] == ("ok", "gloo, 2 ranks")
    assert told["ranks"] == ("ok", "2 met on gloo")
    assert re.fullmatch(
        r"\d+(\.\d)? .s for an all-reduce of 4 B, \d+(\.\d)? .s for an all-reduce of 4 MiB",
        told["collective"][1],
    )
    for api in ("fsdp1", "fsdp2"):
        assert told[f"training, {api}"][0] == "ok"
    assert told["fully_shard"] == ("ok", "offered")
    assert "in all" in told["memory"][1]
    assert "skipped everything on NCCL: " in done.stdout
    assert done.stdout.endswith("fsdpfuzz run can work here.\n")
    assert list(tmp_path.iterdir()) == []


def test_a_machine_that_cannot_run_what_is_asked(tmp_path: Path) -> None:
    done = fsdpfuzz("doctor", "--backend", "nccl", "--world-size", "8", cwd=tmp_path)
    assert done.returncode == 3
    assert lines(done.stdout)["backend"][0] == "missing"
    assert done.stderr.startswith("fsdpfuzz: cannot run here: backend: nccl cannot run 8 ranks")
    assert done.stderr.count("\n") == 1


def test_a_torch_that_does_not_load(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.99')\n")
    program = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{PROGRAM}"
    done = fsdpfuzz("doctor", cwd=tmp_path, program=program, lent=False)
    assert done.returncode == 3
    assert "libcudart.so.99" in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr.split("torch loads")[0]


def test_bad_options(tmp_path: Path) -> None:
    assert fsdpfuzz("doctor", "--backend", "mpi", cwd=tmp_path).returncode == 2
    assert fsdpfuzz("doctor", "--world-size", "9", cwd=tmp_path).returncode == 2

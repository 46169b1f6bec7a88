"""Tests are marked by folder, and those that need more GPUs than there are say so."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import gpus
from tests.meta.imports import REPOSITORY

SUITE = {
    "gpu/test_a.py": "import pytest\ndef test_two(): pass\n"
    "@pytest.mark.gpu(count=3)\ndef test_three(): pass\n",
    "unit/test_b.py": "import pytest\ndef test_none(): pass\n"
    "@pytest.mark.gpu(1)\ndef test_one(): pass\n",
}


def run(folder: Path, visible: str, *arguments: str) -> str:
    for name, text in SUITE.items():
        path = folder / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    shutil.copy(REPOSITORY / "tests" / "conftest.py", folder / "tests")
    shutil.copy(REPOSITORY / "pyproject.toml", folder)
    code = (
        "import sys, re, pathlib, pytest\n"
        "real = pathlib.Path.iterdir\n"
        "nodes = lambda: [pathlib.Path(f'/dev/nvidia{i}') for i in range(2)]\n"
        "pathlib.Path.iterdir = lambda p: iter(nodes()) if str(p) == '/dev' else real(p)\n"
        "sys.exit(pytest.main(['-rs', '-p', 'no:cacheprovider', *sys.argv[1:]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env={"CUDA_VISIBLE_DEVICES": visible, "PATH": "/usr/bin:/bin"},
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("visible", "passed", "reasons"),
    [
        ("", 1, ["needs 1 GPUs, 0 here", "needs 2 GPUs, 0 here", "needs 3 GPUs, 0 here"]),
        ("0", 2, ["needs 2 GPUs, 1 here", "needs 3 GPUs, 1 here"]),
        ("0,1", 3, ["needs 3 GPUs, 2 here"]),
    ],
)
def test_what_needs_more_gpus_is_skipped(
    tmp_path: Path, visible: str, passed: int, reasons: list[str]
) -> None:
    output = run(tmp_path, visible)
    assert f"{passed} passed, {len(reasons)} skipped" in output, output
    for reason in reasons:
        assert reason in output


def test_folders_are_marks(tmp_path: Path) -> None:
    assert "1 passed, 1 skipped, 2 deselected" in run(tmp_path, "", "-m", "unit")
    assert "2 skipped, 2 deselected" in run(tmp_path, "", "-m", "gpu and not unit")


def test_an_unknown_mark_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_c.py").write_text(
        "import pytest\n@pytest.mark.untit\ndef test_c(): pass\n"
    )
    assert "'untit' not found in `markers`" in run(tmp_path, "")


@pytest.mark.parametrize(
    ("visible", "count"), [(None, 2), ("", 0), ("-1", 0), ("0", 1), ("GPU-1, GPU-2,3", 2)]
)
def test_gpus_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int
) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus(tmp_path) == count

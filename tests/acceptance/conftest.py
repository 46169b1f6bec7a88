"""How tests start pytest with the plugin, and the command line with stand-ins."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from tests.acceptance.standin_program import PROGRAM, ROOT


@pytest.fixture
def arguments(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What loads the plugin, whether or not it is installed."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for variable in ("CI", "FSDPFUZZ_WORLD_SIZE", "FSDPFUZZ_BACKEND"):
        monkeypatch.delenv(variable, raising=False)
    installed = importlib.metadata.entry_points(group="pytest11", name="fsdpfuzz")
    return ["-p", "no:cacheprovider", *([] if installed else ["-p", "fsdpfuzz.plugin"])]


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    (tmp_path / "program.py").write_text(PROGRAM)
    return [sys.executable, str(tmp_path / "program.py")]

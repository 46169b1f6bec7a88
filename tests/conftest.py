"""Marks each test by its folder, skips what needs GPUs that are not there, lists what failed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FOLDERS = ("unit", "quality", "meta", "acceptance", "gpu")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    present = gpus()
    for item in items:
        if not item.path.is_relative_to(HERE):
            continue
        folder = item.path.relative_to(HERE).parts[0]
        if folder in FOLDERS:
            item.add_marker(folder)
        needed = wanted(item)
        if needed > present:
            item.add_marker(pytest.mark.skip(reason=f"needs {needed} GPUs, {present} here"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One short line for each test that failed, also where pytest's own are cut, or very long."""
    for outcome in ("failed", "error"):
        for report in terminalreporter.stats.get(outcome, ()):
            terminalreporter.write_line(f"{outcome}: {report.nodeid}")


def wanted(item: pytest.Item) -> int:
    """How many GPUs the test needs; the closest marker that says a number decides."""
    markers = list(item.iter_markers("gpu"))
    for marker in markers:
        counts = (*marker.args, *marker.kwargs.values())
        if counts:
            return int(counts[0])
    return 2 if markers else 0


def gpus(devices: Path = Path("/dev")) -> int:
    """The CUDA devices that a process would see, counted without importing torch."""
    nodes = sum(re.fullmatch(r"nvidia\d+", p.name) is not None for p in devices.iterdir())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return nodes
    chosen = [name for name in visible.split(",") if name.strip() not in ("", "-1")]
    return min(nodes, len(chosen))

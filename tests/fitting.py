"""Faults are small changes of one torch's text: another torch may lack what they change."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks.faults import FAULTS, EditError, changed_code

_PINNED = Path(__file__).resolve().parents[1] / "constraints.txt"


def skip_unless_it_fits(name: str) -> None:
    """Skips a test of a fault that does not fit; on the torch of ``constraints.txt`` each has to.

    That is the torch for which they are written, and on which benchmarks inject them.
    """
    if f"torch=={version('torch').partition('+')[0]}" in _PINNED.read_text().splitlines():
        return
    try:
        changed_code(FAULTS[name])
    except EditError as error:
        pytest.skip(f"torch {version('torch')}: {error}")

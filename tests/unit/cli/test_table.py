"""The closing lines of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.cli._table import print_summary
from tests.unit.loop.test_books import a_found, a_summary


def test_a_known_defect_that_no_drawn_case_showed(capsys: pytest.CaptureFixture[str]) -> None:
    """As where a run begins with what is known to differ between two torches."""
    summary = a_summary(a_found("one", known="K1"), a_found("two", known="K2"))
    print_summary(summary, {"K2": 1}, Path("report.html"))
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("known as")]
    assert told == [
        "known as K1: 1 finding, before any case was drawn",
        "known as K2: 1 case, 1 finding",
    ]

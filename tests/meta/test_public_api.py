"""What a torch offers to users of FSDP is on a list, so that a next release's additions show."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import Version

from fsdpfuzz.loop import installed_torch
from tests.meta.imports import REPOSITORY

LIST = Path(__file__).with_name("public_api.json")
CASE = REPOSITORY / "fsdpfuzz" / "case"


def listed() -> dict[str, dict[str, str]]:
    """``since``: the first release that was seen to offer something; ``dimensions``: what of it
    cases vary, with the file in ``fsdpfuzz/case``; ``gone``: the first without it."""
    found: dict[str, dict[str, str]] = json.loads(LIST.read_text())
    return found


def faults(offered: set[str], known: dict[str, dict[str, str]], torch: str) -> list[str]:
    """What the list and a torch do not agree about."""
    here = Version(Version(torch).base_version)
    since, gone = known["since"], known["gone"]
    there = {
        name
        for name, first in since.items()
        if Version(first) <= here and not (name in gone and Version(gone[name]) <= here)
    }
    return [
        *(f"{name}: new in {here}; put it on the list" for name in sorted(offered - set(since))),
        *(f"{name}: gone in {here}; say so" for name in sorted(there - offered)),
    ]


def test_all_that_this_torch_offers_is_known() -> None:
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "benchmarks" / "public_api.py")],
        capture_output=True,
        text=True,
        check=True,
    )
    offered = set(json.loads(done.stdout))
    assert len(offered) > 150
    assert faults(offered, listed(), installed_torch()) == []


KNOWN = {
    "since": {"f()": "2.7", "f(old)": "2.7", "f(new)": "2.15"},
    "gone": {"f(old)": "2.14"},
    "dimensions": {},
}


@pytest.mark.parametrize(
    ("torch", "offered", "expected"),
    [
        ("2.13.0+cpu", {"f()", "f(old)"}, []),
        ("2.14.1", {"f()"}, []),
        ("2.13.0", {"f()"}, ["f(old): gone in 2.13.0; say so"]),
        ("2.15.0+cu130", {"f()", "f(new)"}, []),
        # Between two releases that were looked at nobody knows.
        ("2.14.1", {"f()", "f(new)"}, []),
        (
            "2.16.0",
            {"f()", "f(newest)"},
            ["f(newest): new in 2.16.0; put it on the list", "f(new): gone in 2.16.0; say so"],
        ),
    ],
)
def test_what_a_next_release_adds_is_noticed(
    torch: str, offered: set[str], expected: list[str]
) -> None:
    assert faults(offered, KNOWN, torch) == expected


def test_dimensions_are_offered_and_have_a_file() -> None:
    known = listed()
    assert set(known["dimensions"]) <= set(known["since"])
    assert set(known["gone"]) <= set(known["since"])
    for name, file in known["dimensions"].items():
        assert (CASE / f"{file}.py").is_file(), (name, file)

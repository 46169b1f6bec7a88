"""A session made of stand-ins, and a toy property to draw from."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.loop import PROPERTIES, Profile
from tests.unit.loop.standins import Bench, Toy


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def profile() -> Profile:
    return Profile(name="toy", max_examples=100, shrink_seconds=60.0)


@pytest.fixture(autouse=True)
def _toy_property(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROPERTIES, "toy", Toy(name="toy", about="lists of Linear"))

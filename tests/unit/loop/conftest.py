"""A session made of stand-ins, and a toy property to draw from."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.loop import PROPERTIES, Profile, Property
from tests.unit.loop.standins import Bench, toy_cases


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def profile() -> Profile:
    return Profile(name="toy", max_examples=100, shrink_seconds=60.0)


@pytest.fixture(autouse=True)
def _toy_property(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = Property(
        name="toy",
        about="lists of Linear",
        strategy=lambda scope: toy_cases(scope.world_sizes),
    )
    monkeypatch.setitem(PROPERTIES, "toy", toy)

"""Draws that processes share are the very draws, and are drawn again once anything changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpfuzz.strategies import FOCUSES, cases
from fsdpfuzz.strategies.drawing import Focus
from tests.meta.imports import sources
from tests.unit.strategies import sample as samples
from tests.unit.strategies.engine import BACKEND
from tests.unit.strategies.sample import WORLD_SIZES, Sample, by_hypothesis, drawn, shared


def few() -> Sample:
    return by_hypothesis(cases(focus="parity"), 5, backend=BACKEND)


def never() -> Sample:
    pytest.fail("it was drawn before")


def test_what_was_drawn_is_read_again(tmp_path: Path) -> None:
    first = shared("few", few, tmp_path)
    assert len(first.cases) == 5
    again = shared("few", never, tmp_path)
    assert again == first == few()
    assert again.statuses["invalid"] == first.statuses["invalid"] == 0


def test_other_sources_draw_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared("few", few, tmp_path)
    monkeypatch.setattr(samples, "version", lambda: "another")
    with pytest.raises(pytest.fail.Exception, match="drawn before"):
        shared("few", never, tmp_path)
    assert [folder.name for folder in tmp_path.iterdir()] == ["another"]


def test_a_draw_that_failed_is_not_kept(tmp_path: Path) -> None:
    def fails() -> Sample:
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        shared("few", fails, tmp_path)
    assert shared("few", few, tmp_path) == few()


def test_the_version_is_that_of_all_that_is_drawn_by(monkeypatch: pytest.MonkeyPatch) -> None:
    samples.version.cache_clear()
    before = samples.version()
    modules = sources()
    assert sum(name.startswith(samples.DECIDES) for name in modules) > 100
    left_out = {name: path for name, path in modules.items() if name != "fsdpfuzz.case.anatomy"}
    monkeypatch.setattr(samples, "sources", lambda: left_out)
    samples.version.cache_clear()
    assert samples.version() != before
    samples.version.cache_clear()


@pytest.mark.parametrize("focus", FOCUSES)
def test_the_loop_draws_what_the_engine_would(focus: Focus) -> None:
    strategy = cases(focus=focus, world_sizes=WORLD_SIZES)
    for start in (1, 2**63 + 5):
        expected = by_hypothesis(strategy, 25, start, backend=BACKEND)
        assert drawn(strategy, 25, start).cases == expected.cases

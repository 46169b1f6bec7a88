"""A model of somebody's own in a test: what was looked at, and what no test passes without."""

from __future__ import annotations

import pytest
from hypothesis.errors import Unsatisfiable

from fsdpfuzz.case import Imported, ImportedModule, ImportedParameter
from fsdpfuzz.loop import check_own
from fsdpfuzz.own import Task
from fsdpfuzz.wire import Target
from tests.unit.loop.standins import Bench

WEIGHT = ImportedParameter(name="weight", shape=(4, 4))
MODEL = Imported(
    target="mine.py",
    functions=("model", "batch"),
    modules=(ImportedModule(path="", cls="Linear", alone=True, parameters=(WEIGHT,)),),
    calls=("",),
)
TASK = Task(
    model=MODEL,
    plan=None,
    depth="anyhow",
    apis=("fsdp1", "fsdp2"),
    words=(),
    notes=(),
    mistakes=(),
    stuck=False,
)
MINE = Target(name="mine.py", folder=".")


def test_as_many_cases_are_run_as_asked_for(bench: Bench) -> None:
    with bench.session(target=MINE) as session:
        check_own(session, TASK, 7)
    assert sum(bench.runs.values()) == 7


def test_nothing_that_was_run_is_nothing_that_passed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench.session(target=MINE) as session:
        monkeypatch.setattr(session, "skips", lambda _case: "K1")
        with pytest.raises(Unsatisfiable, match="no case was run"):
            check_own(session, TASK, 7)
        assert session.passed_over["K1"] >= 7
    assert not bench.runs


@pytest.mark.parametrize("seed", ["1", "any words", 7])
def test_a_seed_draws_the_same_cases(bench: Bench, seed: str | int) -> None:
    def drawn(given: str | int | None) -> list[str]:
        before = len(bench.log)
        with bench.session(target=MINE) as session:
            check_own(session, TASK, 7, seed=given)
        return [name for name, _ in bench.log[before:] if name != "closed"]

    told = drawn(seed)
    assert len(told) >= 7
    assert drawn(seed) == told
    assert drawn("another") != told
    assert drawn(None) != drawn(None)

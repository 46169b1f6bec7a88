"""Each dimension, kind of module, operation and option has a file here, and each file has one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from fsdpfuzz.case import DIMENSIONS, KINDS, OPERATIONS, OPTIONS, Option
from fsdpfuzz.case.dimension import Dimension
from fsdpfuzz.case.loss import LossDimension
from fsdpfuzz.case.units.forward_prefetch import ForwardPrefetch
from fsdpfuzz.errors import ContractError
from fsdpfuzz.strategies import cases, space
from fsdpfuzz.strategies.modules import growth
from fsdpfuzz.strategies.operations import program
from tests.unit.strategies.sample import drawn

FOLDER = Path(space.__file__).parent
SHARED = {
    "": {"__init__", "around", "drawing", "space"},
    "modules": {"__init__", "growth"},
    "operations": {"__init__", "program"},
    "units": {"__init__", "prefetch_list"},
}
"""Files that stand for nothing that is registered."""
REGISTERED = {
    "": {d.name for d in DIMENSIONS if d.drawn and not isinstance(d, Option)},
    "modules": {*KINDS},
    "operations": {*OPERATIONS},
    "units": {option.name for option in OPTIONS if option.drawn},
}


@pytest.mark.parametrize("room", REGISTERED)
def test_no_file_is_missing_and_none_is_an_orphan(room: str) -> None:
    assert {file.stem for file in (FOLDER / room).glob("*.py")} == SHARED[room] | REGISTERED[room]


def test_there_are_no_other_rooms() -> None:
    folders = {p.name for p in FOLDER.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert folders == REGISTERED.keys() - {""}


class Novel(LossDimension):
    """A dimension that nothing draws."""

    name: ClassVar[str] = "novel"


class NovelOption(ForwardPrefetch):
    """An option that nothing draws."""

    name: ClassVar[str] = "novel"


@pytest.fixture(autouse=True)
def _forgetful() -> Iterator[None]:
    caches: tuple[Callable[[], Any], ...] = (
        space._parts,
        growth.module_strategies,
        program.operation_strategies,
    )
    for _ in range(2):
        for cached in caches:
            cached.cache_clear()  # type: ignore[attr-defined]
        if _ == 0:
            yield


def says(name: str) -> Any:
    """That a part is missing, when a case is drawn for the first time."""
    return pytest.raises(ContractError, match=name)


def draw_some() -> None:
    """Enough draws to meet tokens, a model and a program."""
    drawn(cases(), 5)


@pytest.mark.parametrize(
    ("dimension", "file"),
    [(Novel(), r"strategies/novel\.py"), (NovelOption(), r"strategies/units/novel\.py")],
)
def test_a_dimension_without_a_file_is_refused(
    monkeypatch: pytest.MonkeyPatch, dimension: Dimension, file: str
) -> None:
    monkeypatch.setattr(space, "DIMENSIONS", (*DIMENSIONS, dimension))
    with says(rf"{file} has no draw\(\)"):
        draw_some()


def test_a_kind_of_module_without_a_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "KINDS", {**KINDS, "novel": KINDS["linear"]})
    with says(r"strategies/modules/novel\.py has no STRATEGY"):
        draw_some()


def test_an_operation_without_a_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "OPERATIONS", {**OPERATIONS, "novel": OPERATIONS["step"]})
    with says(r"strategies/operations/novel\.py has no draw\(\)"):
        draw_some()


def test_a_kind_whose_file_holds_something_else_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "fsdpfuzz.strategies.modules.novel"
    stray = ModuleType(name)
    stray.STRATEGY = "novel"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, stray)
    monkeypatch.setattr(growth, "KINDS", {**KINDS, "novel": KINDS["linear"]})
    with says(r"STRATEGY of strategies/modules/novel\.py is no ModuleStrategy"):
        draw_some()


NO_CHOICE = {"backward": "`forward` adds", "idle": "only one"}
"""What has nothing to shrink, and what it says instead."""


def test_every_strategy_says_what_it_shrinks_towards() -> None:
    draws: dict[str, Callable[..., Any]] = {d.name: space.part_of(d) for d in DIMENSIONS if d.drawn}
    draws |= program.operation_strategies()
    draws |= {kind: one.draw for kind, one in growth.module_strategies().items()}
    draws["cases"] = cases
    for name, function in draws.items():
        told = function.__doc__ or ""
        assert NO_CHOICE.get(name, "Shrinks towards") in told, name

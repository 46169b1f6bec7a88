"""Whose code may be run: what the command line names, and nothing that a case says."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fsdpfuzz.case import Fsdp2Plan, Fsdp2Unit
from fsdpfuzz.errors import UsageError
from fsdpfuzz.loop import Session, SessionSettings
from fsdpfuzz.own import permit, target_named, unchanged
from fsdpfuzz.wire import Target
from tests.unit.case.test_imported import CASE, MODEL
from tests.unit.loop.standins import make_case

HERE = Target(name="mymodel.py", folder="/somewhere")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gone.py", "no file 'gone.py'; `fsdpfuzz check --init"),
        ("my-model.py", "cannot be imported by its name"),
        ("random.py", "has the name of another module, 'random'"),
        ("no.such.module", "there is no module 'no.such.module'"),
        ("a/b", "there is no file 'a/b'"),
        ("nowhere:b", "there is no module 'nowhere'"),
        ("mine.py:", "'' is no name of a class"),
        ("mine.py:a.b", "'a.b' is no name of a class"),
        ("mine.py:class", "'class' is no name of a class"),
    ],
)
def test_a_target_that_is_none(
    text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("my-model.py", "random.py"):
        (tmp_path / name).touch()
    with pytest.raises(UsageError, match="TARGET: .*" + reason):
        target_named(text)


def test_a_file_and_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/mine.py").write_text("raise SystemExit('it was run')")
    monkeypatch.chdir(tmp_path)
    folder = str(tmp_path / "work")
    assert target_named("work/mine.py") == Target(name="mine.py", folder=folder)
    assert target_named("work.mine") == Target(name="work.mine", folder=str(tmp_path))


@pytest.mark.parametrize("target", [None, Target(name="other.py", folder="/somewhere")])
def test_a_case_runs_no_code_by_itself(target: Target | None, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"code of mymodel\.py.*--target PATH/TO/mymodel\.py"):
        permit(CASE, target)
    permit(make_case(), target)
    settings = SessionSettings(output=tmp_path, target=target)
    for act in ("begin", "examine", "confirm"):
        with Session(settings) as session, pytest.raises(UsageError, match="--target"):
            getattr(session, act)(CASE)
    assert not list(tmp_path.rglob("*.json"))


def test_a_case_of_code_that_is_named_is_permitted() -> None:
    permit(CASE, HERE)


def test_code_that_has_changed_is_told() -> None:
    unchanged(CASE, MODEL)
    unchanged(make_case(), MODEL)
    first, *rest = MODEL.modules
    slower = msgspec.structs.replace(first, repeats=not first.repeats)
    unchanged(CASE, msgspec.structs.replace(MODEL, modules=(slower, *rest)))
    other = msgspec.structs.replace(MODEL, modules=(first, *rest[:-1]))
    with pytest.raises(UsageError, match=r"mymodel\.py has changed .*'head'"):
        unchanged(CASE, other)


def test_how_it_wraps_itself_is_tried_whatever_is_known(tmp_path: Path) -> None:
    split = Fsdp2Unit(path=""), Fsdp2Unit(path="embed")
    case = msgspec.structs.replace(CASE, plan=Fsdp2Plan(units=split))
    own = msgspec.structs.replace(case, model=msgspec.structs.replace(MODEL, wrapped=True))
    with Session(SessionSettings(output=tmp_path, torch="2.13.0", target=HERE)) as session:
        assert session.skips(case) is not None
        assert session.skips(own) is None

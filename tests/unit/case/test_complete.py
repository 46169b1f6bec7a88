"""What leaves a part out, or names what another one has named, is refused when it is imported."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsdpfuzz.case import (
    FEATURES,
    PARAMETER_FEATURES,
    UNIT_FEATURES,
    Anatomy,
    anatomy,
    case_features,
    features,
    parameter_features,
    unit_features,
)
from fsdpfuzz.case.loss import LossDimension
from fsdpfuzz.errors import ContractError
from tests.unit.case.saved import documents, saved

PACKAGE = Path(__file__).parents[3] / "fsdpfuzz"


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package that can be spoilt; each test puts back what it has changed."""
    target = tmp_path_factory.mktemp("copy") / "fsdpfuzz"
    target.mkdir()
    for part in ("case", "expect", "invariants"):
        shutil.copytree(PACKAGE / part, target / part)
    for part in ("__init__", "errors", "observations", "verdict"):
        shutil.copy(PACKAGE / f"{part}.py", target)
    return target


def imported(copy: Path, module: str) -> str:
    """What a fresh process says that imports a module of the copy."""
    program = f"import {module}, fsdpfuzz; print(fsdpfuzz.__file__)"
    done = subprocess.run(
        [sys.executable, "-B", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=copy.parent,
        env={**os.environ, "PYTHONPATH": os.fspath(copy.parent)},
    )
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    assert done.stdout.strip() == os.fspath(copy / "__init__.py")
    return ""


def test_the_copy_as_it_is_can_be_imported(copied: Path) -> None:
    assert imported(copied, "fsdpfuzz.invariants") == ""


LACKING = "ContractError: the {} lacks {}"
ABSTRACT = "TypeError: .*abstract class {} .*{}"
TWO = "ContractError: two {}"


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("modules/linear", "def width_after", "", LACKING.format("module kind linear", "width_a")),
        ("modules/lora", "def visit", "", LACKING.format("module kind lora", "visit")),
        ("modules/repeat", "def module", "", LACKING.format("module kind repeat", "module")),
        ("operations/step", "def steps", "", LACKING.format("operation step", "steps")),
        ("operations/flip", "def check", "", LACKING.format("operation flip", "check")),
        ("operations/mode", "def words", "", LACKING.format("operation mode", "words")),
        ("operations/step", "def values", "", "ContractError: .*step has features without values"),
        (
            "hazards/shared_order",
            "def values",
            "",
            "ContractError: SharedOrderDimension has features without values",
        ),
        ("loss", "def values", "", ABSTRACT.format("LossDimension", "values")),
        ("ties", "def check", "", ABSTRACT.format("TiesDimension", "check")),
        ("ties", "def simpler", "", ABSTRACT.format("TiesDimension", "simpler")),
        ("units/sharding", "def text", "", ABSTRACT.format("ShardingOption", "text")),
        ("units/ignored", "def argument", "", ABSTRACT.format("Ignored", "argument")),
        ("../invariants/parity", "def check", "", ABSTRACT.format("OutputParity", "check")),
        ("../invariants/hooks", "def evidence", "", ABSTRACT.format("OffloadEntered", "evidence")),
        ("operations/clip", "(TOTAL_NORM,)", '("novel",)', "no invariant is about the results"),
        ("loss", '"loss": F', '"freeze": F', TWO.format("dimensions have a feature 'freeze'")),
        (
            "operations/mode",
            '"eval": F',
            '"steps": F',
            TWO.format("operations have a feature 'steps'"),
        ),
        (
            "wrap",
            '"fsdp1_scalar_parameter"',
            '"fsdp1_mixed_options"',
            TWO.format("rejections are called 'fsdp1_mixed_options'"),
        ),
        (
            "../invariants/hooks",
            '"offload_entered"',
            '"no_hang"',
            TWO.format("invariants are called 'no_hang'"),
        ),
    ],
)
def test_a_missing_part_and_a_name_in_use_are_refused(
    copied: Path, file: str, old: str, new: str, says: str
) -> None:
    path = copied / "case" / f"{file}.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new or "def other", 1))
    try:
        said = imported(copied, "fsdpfuzz.invariants")
    finally:
        path.write_text(text)
    assert re.search(says, said), said


def test_a_value_of_a_feature_that_nothing_declares_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def values(self: LossDimension, a: Anatomy, _: str = "") -> Iterator[tuple[str, str]]:
        yield "novel", "on"

    case = saved("fsdp1-single-element-accumulation")
    for kind in ("values", "unit_values", "parameter_values"):
        monkeypatch.setattr(LossDimension, kind, values)
    a = Anatomy(case)  # of which nothing was asked yet
    asked = (case_features(a), unit_features(a, ""), parameter_features(a, "weight"))
    for told in asked:
        with pytest.raises(ContractError, match="'novel'"):
            dict(told)


def test_every_declared_feature_has_values() -> None:
    told: tuple[set[str], ...] = (set(), set(), set())
    for name in documents():
        case = saved(name)
        a = anatomy(case)
        told[0].update(features(case))
        for path in a.units:
            told[1].update(unit_features(a, path))
        for parameter in a.parameters:
            told[2].update(parameter_features(a, parameter.fqn))
    assert told == (set(FEATURES), set(UNIT_FEATURES), set(PARAMETER_FEATURES))

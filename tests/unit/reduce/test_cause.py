"""Findings are alike where the same invariant breaks in the same way."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fsdpfuzz.reduce import alike
from fsdpfuzz.verdict import Failure
from tests.unit.reduce.samples import GRAD

RAISED = Failure(type="RuntimeError", text="a", place="torch/a.py:f", stage="case:forward[0]")
CRASH = msgspec.structs.replace(GRAD, invariant="no_crash", symptom="crash", failure=RAISED)


@pytest.mark.parametrize(
    "changes",
    [
        {"api": "fsdp2"},
        {"op": 7, "name": "3.weight", "observed": "1", "ranks": (1,)},
        {"kind": "other", "detail": "zero"},
    ],
)
def test_numbers_names_and_api_do_not_count(changes: dict[str, Any]) -> None:
    assert alike(GRAD, msgspec.structs.replace(GRAD, **changes))
    assert alike(CRASH, msgspec.structs.replace(CRASH, **changes))


@pytest.mark.parametrize("changes", [{"invariant": "param_parity"}, {"symptom": "leak"}])
def test_invariant_and_symptom_count(changes: dict[str, Any]) -> None:
    assert not alike(GRAD, msgspec.structs.replace(GRAD, **changes))


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"text": "b"}, True),
        ({"stage": "case:step[3]"}, True),
        ({"type": "ValueError"}, False),
        ({"place": "torch/b.py:g"}, False),
        ({"exitcode": -11}, False),
    ],
)
def test_exceptions_are_alike_by_type_and_place(changes: dict[str, Any], same: bool) -> None:
    failure = msgspec.structs.replace(RAISED, **changes)
    assert alike(CRASH, msgspec.structs.replace(CRASH, failure=failure)) is same


def test_an_exception_is_not_like_none() -> None:
    without = msgspec.structs.replace(CRASH, failure=None)
    assert not alike(CRASH, without)
    assert not alike(without, CRASH)

"""A part of a case is asked for by attribute: a misspelt name is a type error, no default."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.meta.imports import sources

PLAIN = ("case", "expect", "invariants", "known", "reduce", "seeds", "strategies")
"""Rooms that know all that they deal with, which is records of ours."""


def defaults(text: str) -> Iterator[int]:
    """Lines with a ``getattr`` by a name written there."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(), *_]):
                yield node.lineno


def test_nothing_is_asked_for_by_a_name_with_a_default() -> None:
    asked = {m: p for m, p in sources().items() if m.split(".")[1:2] and m.split(".")[1] in PLAIN}
    assert {module.split(".")[1] for module in asked} == set(PLAIN)
    assert [f"{m}:{line}" for m, p in asked.items() for line in defaults(p.read_text())] == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("x = 1\ny = getattr(op, 'form', '')", [2]),
        ("y = getattr(op, 'form')", [1]),
        ("y = getattr(unit, option.name)", []),
        ("y = op.form", []),
    ],
)
def test_such_a_name_is_seen(text: str, lines: list[int]) -> None:
    assert list(defaults(text)) == lines
